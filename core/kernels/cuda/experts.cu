#include <ATen/core/Tensor.h>
#include <ATen/ops/sort.h>

#include <cfloat>
#include <cmath>

#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/host.h"
#include "core/kernels/cuda/math.h"
#include "core/kernels/cuda/rows.cuh"
#include "core/kernels/expert_kernels.h"

namespace pptrain::kernels::cuda {
namespace {

constexpr int64_t most_expert_threads = 256;
constexpr int64_t most_experts = 4096;  // a row's scores lie in shared memory

// --- Router: one warp a token ---

struct Choice {
  float score;
  int expert;
};

__device__ inline bool is_better(Choice a, Choice b) {
  return a.score > b.score || (a.score == b.score && a.expert < b.expert);
}

// The best of the warp's, the same in every lane.
__device__ inline Choice best_of_warp(Choice mine) {
  for (int offset = warp_size / 2; offset > 0; offset /= 2) {
    const Choice other{__shfl_xor_sync(0xffffffffU, mine.score, offset),
                       __shfl_xor_sync(0xffffffffU, mine.expert, offset)};
    if (is_better(other, mine)) {
      mine = other;
    }
  }
  return mine;
}

struct RouteShape {
  int experts;
  int k;
  bool normalise;
};

// Scores lie in shared memory; a chosen one becomes NaN, which is never better than another. A NaN of the
// logits counts as the lowest score, so that the choice is always one of k experts.
__global__ void route_kernel(const float* all_logits, const float* bias, RouteShape shape,
                             float* all_probabilities, float* logsumexp, int* all_chosen,
                             float* all_weights) {
  const int64_t token = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x);
  const int experts = shape.experts;
  const float* const logits = all_logits + token * experts;
  float* const probabilities = all_probabilities + token * experts;
  int* const chosen = all_chosen + token * shape.k;
  float* const weights = all_weights + token * shape.k;
  float* const scores = dynamic_shared<float>();
  float max = -FLT_MAX;
  for (int e = lane; e < experts; e += warp_size) {
    max = fmaxf(max, logits[e]);
  }
  max = warp_max(max);
  float sum = 0.0F;
  for (int e = lane; e < experts; e += warp_size) {
    sum += expf(logits[e] - max);
  }
  sum = group_sum(sum, warp_size);
  const float scale = 1.0F / sum;
  for (int e = lane; e < experts; e += warp_size) {
    const float p = expf(logits[e] - max) * scale;
    const float score = bias == nullptr ? p : p + bias[e];
    probabilities[e] = p;
    scores[e] = score == score ? score : -FLT_MAX;
  }
  if (lane == 0) {
    logsumexp[token] = logf(sum) + max;
  }
  float total = 0.0F;
  for (int j = 0; j < shape.k; ++j) {
    Choice mine{-INFINITY, experts};
    for (int e = lane; e < experts; e += warp_size) {
      const Choice other{scores[e], e};
      if (is_better(other, mine)) {
        mine = other;
      }
    }
    const int expert = best_of_warp(mine).expert;
    const float weight = expf(logits[expert] - max) * scale;
    total += weight;
    if (lane == expert % warp_size) {
      scores[expert] = NAN;
    }
    if (lane == 0) {
      chosen[j] = expert;
      weights[j] = weight;
    }
  }
  if (shape.normalise && lane == 0) {
    for (int j = 0; j < shape.k; ++j) {
      weights[j] /= total;
    }
  }
}

// The derivation stands with the CPU's loop (cpu/expert_loops.inc).
__global__ void route_backward_kernel(const float* all_dweights, const float* all_probabilities,
                                      const float* logsumexp, const int* all_chosen, const float* slopes,
                                      float z_slope, const bool* all_filling, RouteShape shape,
                                      float* all_dlogits) {
  const int64_t token = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x);
  const int experts = shape.experts;
  const float* const dweights = all_dweights + token * shape.k;
  const float* const probabilities = all_probabilities + token * experts;
  const int* const chosen = all_chosen + token * shape.k;
  const bool filling = all_filling != nullptr && all_filling[token];
  float* const d = dynamic_shared<float>();
  for (int e = lane; e < experts; e += warp_size) {
    d[e] = slopes == nullptr || filling ? 0.0F : slopes[e];
  }
  __syncthreads();
  if (lane == 0) {
    float scale = 1.0F;
    float mean = 0.0F;
    if (shape.normalise) {
      float total = 0.0F;
      float product = 0.0F;
      for (int j = 0; j < shape.k; ++j) {
        const float p = probabilities[chosen[j]];
        total += p;
        product += dweights[j] * p;
      }
      scale = 1.0F / total;
      mean = product / total;
    }
    for (int j = 0; j < shape.k; ++j) {
      d[chosen[j]] += (dweights[j] - mean) * scale;
    }
  }
  __syncthreads();
  float dot = 0.0F;
  for (int e = lane; e < experts; e += warp_size) {
    dot = fmaf(probabilities[e], d[e], dot);
  }
  dot = group_sum(dot, warp_size);
  const float own_z_slope = filling ? 0.0F : z_slope;
  const float shift = 2.0F * own_z_slope * logsumexp[token] - dot;
  for (int e = lane; e < experts; e += warp_size) {
    all_dlogits[token * experts + e] = probabilities[e] * (d[e] + shift);
  }
}

// --- Rows ---

// sorted: [rows] experts, ascending; assignments: the stable sort's order of them. One thread a row, or an
// expert.
__global__ void place_rows_kernel(const int64_t* assignments, int64_t rows, int* order, int* place) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at < rows) {
    const int64_t assignment = assignments[at];
    order[at] = static_cast<int>(assignment);
    place[assignment] = static_cast<int>(at);
  }
}

__global__ void ends_kernel(const int* sorted, int64_t rows, int experts, int* ends) {
  const int64_t expert = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (expert >= experts) {
    return;
  }
  ends[expert] = static_cast<int>(first_above(sorted, int64_t{0}, rows, static_cast<int>(expert)));
}

// One block a row of the result.
template <typename T, bool kVector>
__global__ void gather_rows_kernel(const T* x, const int* order, int64_t each, int64_t dim, T* out) {
  constexpr int N = pack_width<T>;
  const int64_t row = blockIdx.x;
  const T* const from = x + order[row] / each * dim;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * N;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < dim; i += stride) {
    float v[N];
    load<kVector>(from + i, dim - i, v);
    store<kVector>(out + row * dim + i, dim - i, v);
  }
}

template <typename T, bool kVector>
__global__ void sum_rows_kernel(const T* x, const int* all_places, const float* residual, int64_t k,
                                int64_t dim, T* out) {
  constexpr int N = pack_width<T>;
  const int64_t row = blockIdx.x;
  const int* const place = all_places + row * k;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * N;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < dim; i += stride) {
    float sum[N];
    load<kVector>(x + place[0] * dim + i, dim - i, sum);
    for (int64_t j = 1; j < k; ++j) {
      float v[N];
      load<kVector>(x + place[j] * dim + i, dim - i, v);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        sum[n] += v[n];
      }
    }
    if (residual != nullptr) {
      float v[N];
      load<kVector>(residual + row * dim + i, dim - i, v);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        sum[n] += v[n];
      }
    }
    store<kVector>(out + row * dim + i, dim - i, sum);
  }
}

// --- SwiGLU with a weight for each row: one block a row ---

template <typename T, bool kVector>
__global__ void weighted_swiglu_kernel(const T* gate_up, const float* weights, int64_t dim, T* y) {
  constexpr int N = pack_width<T>;
  const int64_t row = blockIdx.x;
  const T* const gate = gate_up + row * 2 * dim;
  const T* const up = gate + dim;
  const float weight = weights[row];
  const int64_t stride = static_cast<int64_t>(blockDim.x) * N;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < dim; i += stride) {
    float g[N];
    float u[N];
    load<kVector>(gate + i, dim - i, g);
    load<kVector>(up + i, dim - i, u);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      u[j] *= silu(g[j]) * weight;
    }
    store<kVector>(y + row * dim + i, dim - i, u);
  }
}

// dgate_up may be gate_up, and y, if given, dy: a thread reads its elements before it writes them.
template <typename T, bool kVector>
__global__ void weighted_swiglu_backward_kernel(const T* dy, const T* gate_up, const float* weights,
                                                int64_t dim, T* dgate_up, float* dweights, T* y) {
  constexpr int N = pack_width<T>;
  __shared__ float scratch[warp_size];
  const int64_t row = blockIdx.x;
  const int64_t base = row * 2 * dim;
  const float weight = weights[row];
  const int64_t stride = static_cast<int64_t>(blockDim.x) * N;
  float dot = 0.0F;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < dim; i += stride) {
    float d[N];
    float g[N];
    float u[N];
    load<kVector>(dy + row * dim + i, dim - i, d);
    load<kVector>(gate_up + base + i, dim - i, g);
    load<kVector>(gate_up + base + dim + i, dim - i, u);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const SwigluGradient gradient = swiglu_gradient(d[j], g[j], u[j]);
      dot = fmaf(gradient.up, u[j], dot);
      d[j] = u[j] * (silu(g[j]) * weight);
      g[j] = gradient.gate * weight;
      u[j] = gradient.up * weight;
    }
    store<kVector>(dgate_up + base + i, dim - i, g);
    store<kVector>(dgate_up + base + dim + i, dim - i, u);
    if (y != nullptr) {
      store<kVector>(y + row * dim + i, dim - i, d);
    }
  }
  const float sum = block_sum(dot, scratch);
  if (threadIdx.x == 0) {
    dweights[row] = sum;
  }
}

}  // namespace

void route(const Tensor& logits, const std::optional<Tensor>& bias, bool normalise, Tensor& probabilities,
           Tensor& logsumexp, Tensor& chosen, Tensor& weights) {
  const char* const name = "route";
  const int64_t experts = logits.size(1);
  require(experts <= most_experts, name, "at most 4096 experts");
  if (logits.numel() == 0) {
    return;
  }
  const DeviceGuard guard(logits.device());
  const RouteShape shape{static_cast<int>(experts), static_cast<int>(chosen.size(1)), normalise};
  launch(name, route_kernel, grid_size(logits.size(0), name), warp_size, experts * sizeof(float),
         input<float>(logits), input<float>(bias), shape, output<float>(probabilities),
         output<float>(logsumexp), output<int>(chosen), output<float>(weights));
}

void route_backward(const Tensor& dweights, const Tensor& probabilities, const Tensor& logsumexp,
                    const Tensor& chosen, const std::optional<Tensor>& slopes, double z_slope,
                    const std::optional<Tensor>& filling, bool normalise, Tensor& dlogits) {
  const char* const name = "route_backward";
  const int64_t experts = probabilities.size(1);
  require(experts <= most_experts, name, "at most 4096 experts");
  if (dlogits.numel() == 0) {
    return;
  }
  const DeviceGuard guard(dlogits.device());
  const RouteShape shape{static_cast<int>(experts), static_cast<int>(chosen.size(1)), normalise};
  launch(name, route_backward_kernel, grid_size(dlogits.size(0), name), warp_size, experts * sizeof(float),
         input<float>(dweights), input<float>(probabilities), input<float>(logsumexp), input<int>(chosen),
         input<float>(slopes), static_cast<float>(z_slope), input<bool>(filling), shape,
         output<float>(dlogits));
}

// A stable sort keeps the assignments of one expert in order.
void group_rows(const Tensor& chosen, Tensor& ends, Tensor& order, Tensor& place) {
  const char* const name = "group_rows";
  const int64_t rows = chosen.numel();
  const int64_t experts = ends.size(0);
  if (rows == 0) {
    ends.zero_();
    return;
  }
  const DeviceGuard guard(chosen.device());
  const auto [sorted, assignments] =
      at::sort(chosen.view({-1}), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  launch(name, place_rows_kernel, grid_size(ceil_div(rows, most_expert_threads), name), most_expert_threads,
         0, input<int64_t>(assignments), rows, output<int>(order), output<int>(place));
  launch(name, ends_kernel, grid_size(ceil_div(experts, most_expert_threads), name), most_expert_threads, 0,
         input<int>(sorted), rows, static_cast<int>(experts), output<int>(ends));
}

void gather_rows(const Tensor& x, const Tensor& order, int64_t each, Tensor& out) {
  const char* const name = "gather_rows";
  const auto run = [&]<typename T, bool kVector>(T, std::bool_constant<kVector>, auto blocks, auto threads) {
    launch(name, gather_rows_kernel<T, kVector>, blocks, threads, 0, input<T>(x), input<int>(order), each,
           x.size(1), output<T>(out));
  };
  for_rows(name, out, most_expert_threads, run, x, out);
}

void sum_rows(const Tensor& x, const Tensor& place, const std::optional<Tensor>& residual, Tensor& out) {
  const char* const name = "sum_rows";
  const auto run = [&]<typename T, bool kVector>(T, std::bool_constant<kVector>, auto blocks, auto threads) {
    launch(name, sum_rows_kernel<T, kVector>, blocks, threads, 0, input<T>(x), input<int>(place),
           input<float>(residual), place.size(1), x.size(1), output<T>(out));
  };
  for_rows(name, out, most_expert_threads, run, x, residual, out);
}

void weighted_swiglu(const Tensor& gate_up, const Tensor& weights, Tensor& y) {
  const char* const name = "weighted_swiglu";
  const auto run = [&]<typename T, bool kVector>(T, std::bool_constant<kVector>, auto blocks, auto threads) {
    launch(name, weighted_swiglu_kernel<T, kVector>, blocks, threads, 0, input<T>(gate_up),
           input<float>(weights), y.size(1), output<T>(y));
  };
  for_rows(name, y, most_expert_threads, run, gate_up, y);
}

void weighted_swiglu_backward(const Tensor& dy, const Tensor& gate_up, const Tensor& weights,
                              Tensor& dgate_up, Tensor& dweights, const std::optional<Tensor>& y) {
  const char* const name = "weighted_swiglu_backward";
  const auto run = [&]<typename T, bool kVector>(T, std::bool_constant<kVector>, auto blocks, auto threads) {
    launch(name, weighted_swiglu_backward_kernel<T, kVector>, blocks, threads, 0, input<T>(dy),
           input<T>(gate_up), input<float>(weights), dy.size(1), output<T>(dgate_up), output<float>(dweights),
           output<T>(y));
  };
  for_rows(name, dy, most_expert_threads, run, dy, gate_up, dgate_up, y);
}

void add_expert_kernels() {
  kernels::route.implement(BackEnd::cuda, route);
  kernels::route_backward.implement(BackEnd::cuda, route_backward);
  kernels::group_rows.implement(BackEnd::cuda, group_rows);
  kernels::gather_rows.implement(BackEnd::cuda, gather_rows);
  kernels::sum_rows.implement(BackEnd::cuda, sum_rows);
  kernels::weighted_swiglu.implement(BackEnd::cuda, weighted_swiglu);
  kernels::weighted_swiglu_backward.implement(BackEnd::cuda, weighted_swiglu_backward);
}

}  // namespace pptrain::kernels::cuda
