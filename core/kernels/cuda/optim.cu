#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>

#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/host.h"
#include "core/kernels/cuda/math.h"
#include "core/kernels/exact_sum.h"
#include "core/kernels/kernels.h"
#include "core/kernels/optimizers.h"

namespace pptrain::kernels::cuda {
namespace {

constexpr unsigned threads_per_block = 256;
constexpr int warps_per_block = static_cast<int>(threads_per_block) / warp_size;
constexpr int64_t most_partial_blocks = 1024;
constexpr int N = pack_width<float>;

struct AdamWTensors {
  float* weight;
  const float* grad;
  float* exp_avg;
  float* exp_avg_sq;
  at::BFloat16* compute;  // may be null
  // What is overwritten goes here; all three may be null.
  float* previous_weight;
  float* previous_exp_avg;
  float* previous_exp_avg_sq;
};

// Updates elements [i, i + min(N, valid)).
template <bool kVector>
__device__ inline void adamw_pack(const AdamWTensors& t, int64_t i, int64_t valid,
                                  const AdamWScalars& scalars) {
  float w[N];
  float g[N];
  float m[N];
  float v[N];
  load<kVector>(t.weight + i, valid, w);
  load<kVector>(t.grad + i, valid, g);
  load<kVector>(t.exp_avg + i, valid, m);
  load<kVector>(t.exp_avg_sq + i, valid, v);
  if (t.previous_weight != nullptr) {
    store<kVector>(t.previous_weight + i, valid, w);
    store<kVector>(t.previous_exp_avg + i, valid, m);
    store<kVector>(t.previous_exp_avg_sq + i, valid, v);
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const AdamWState next = adamw_update({w[j], m[j], v[j]}, g[j], scalars);
    w[j] = next.weight;
    m[j] = next.exp_avg;
    v[j] = next.exp_avg_sq;
  }
  store<kVector>(t.weight + i, valid, w);
  store<kVector>(t.exp_avg + i, valid, m);
  store<kVector>(t.exp_avg_sq + i, valid, v);
  if (t.compute != nullptr) {
    store<kVector>(t.compute + i, valid, w);
  }
}

// One pack a thread; only the last may be incomplete.
template <bool kVector>
__global__ void adamw_kernel(AdamWTensors tensors, int64_t size, AdamWScalars scalars) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (size - i >= N) {
    adamw_pack<kVector>(tensors, i, N, scalars);
  } else if (i < size) {
    adamw_pack<false>(tensors, i, size - i, scalars);
  }
}

struct LionTensors {
  float* weight;
  const float* grad;
  float* exp_avg;
  at::BFloat16* compute;  // may be null
  // What is overwritten goes here; both may be null.
  float* previous_weight;
  float* previous_exp_avg;
};

// Updates elements [i, i + min(N, valid)).
template <bool kVector>
__device__ inline void lion_pack(const LionTensors& t, int64_t i, int64_t valid, const LionScalars& scalars) {
  float w[N];
  float g[N];
  float m[N];
  load<kVector>(t.weight + i, valid, w);
  load<kVector>(t.grad + i, valid, g);
  load<kVector>(t.exp_avg + i, valid, m);
  if (t.previous_weight != nullptr) {
    store<kVector>(t.previous_weight + i, valid, w);
    store<kVector>(t.previous_exp_avg + i, valid, m);
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const LionState next = lion_update({w[j], m[j]}, g[j], scalars);
    w[j] = next.weight;
    m[j] = next.exp_avg;
  }
  store<kVector>(t.weight + i, valid, w);
  store<kVector>(t.exp_avg + i, valid, m);
  if (t.compute != nullptr) {
    store<kVector>(t.compute + i, valid, w);
  }
}

template <bool kVector>
__global__ void lion_kernel(LionTensors tensors, int64_t size, LionScalars scalars) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (size - i >= N) {
    lion_pack<kVector>(tensors, i, N, scalars);
  } else if (i < size) {
    lion_pack<false>(tensors, i, size - i, scalars);
  }
}

// `next` may be `average`: a thread reads its elements before it writes them.
template <typename T, bool kVector>
__device__ inline void momentum_pack(const float* average, const float* grad, T* next, int64_t valid,
                                     float grad_scale, float one_minus_beta) {
  float m[N];
  float g[N];
  load<kVector>(average, valid, m);
  load<kVector>(grad, valid, g);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    m[j] += (g[j] * grad_scale - m[j]) * one_minus_beta;
  }
  store<kVector>(next, valid, m);
}

template <typename T, bool kVector>
__global__ void momentum_kernel(const float* average, const float* grad, T* next, int64_t size,
                                float grad_scale, float one_minus_beta) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (size - i >= N) {
    momentum_pack<T, kVector>(average + i, grad + i, next + i, N, grad_scale, one_minus_beta);
  } else if (i < size) {
    momentum_pack<T, false>(average + i, grad + i, next + i, size - i, grad_scale, one_minus_beta);
  }
}

template <typename T, bool kVector>
__device__ inline void descend_pack(float* weight, const T* direction, at::BFloat16* compute, int64_t i,
                                    int64_t valid, float decay, float step) {
  float w[N];
  float d[N];
  load<kVector>(weight + i, valid, w);
  load<kVector>(direction + i, valid, d);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    w[j] = w[j] * decay - step * d[j];
  }
  store<kVector>(weight + i, valid, w);
  if (compute != nullptr) {
    store<kVector>(compute + i, valid, w);
  }
}

template <typename T, bool kVector>
__global__ void descend_kernel(float* weight, const T* direction, at::BFloat16* compute, int64_t size,
                               float decay, float step) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (size - i >= N) {
    descend_pack<T, kVector>(weight, direction, compute, i, N, decay, step);
  } else if (i < size) {
    descend_pack<T, false>(weight, direction, compute, i, size - i, decay, step);
  }
}

// Blocks of one pack a thread.
unsigned blocks_of(int64_t size, const char* kernel) {
  return grid_size(ceil_div(ceil_div(size, N), threads_per_block), kernel);
}

// A warp's sum of squares of one block of the buffer: lane l takes packs l, l + 32, ... of the block, of
// which elements outside of [begin, end) read as 0. x: the buffer's element `begin`.
template <bool kVector>
__device__ inline double block_squares(const float* x, int64_t block, int64_t begin, int64_t end) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  double sum = 0.0;
  for (int64_t i = lane * N; i < squares_block; i += warp_size * N) {
    const int64_t at = block * squares_block + i;
    float a[N];
    if (at >= begin && end - at >= N) {
      load<kVector>(x + (at - begin), N, a);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        a[j] = at + j >= begin && at + j < end ? x[at + j - begin] : 0.0F;
      }
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      sum = fma(static_cast<double>(a[j]), static_cast<double>(a[j]), sum);
    }
  }
  return group_sum(sum, warp_size);
}

// One warp for each block of the buffer, and for every (warps of the grid)th after. A warp adds its blocks up
// in words of its own, then to all: sums of integers have no order.
template <bool kVector>
__global__ void add_squares_kernel(const float* x, int64_t begin, int64_t end, unsigned long long* sum) {
  __shared__ unsigned long long own[warps_per_block][exact_words];
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  if (lane < exact_words) {
    own[warp][lane] = 0;
  }
  const int64_t stride = static_cast<int64_t>(gridDim.x) * warps_per_block;
  int64_t block = begin / squares_block + static_cast<int64_t>(blockIdx.x) * warps_per_block + warp;
  __syncthreads();
  for (; block * squares_block < end; block += stride) {
    const double squares = block_squares<kVector>(x, block, begin, end);
    if (lane != 0) {
      continue;
    }
    if (!is_exact_term(squares)) {
      ++own[warp][exact_limbs];
      continue;
    }
    const ExactTerm term = exact_term(squares);
    for (int i = 0; i < 3 && term.limb + i < exact_limbs; ++i) {
      own[warp][term.limb + i] += term.pieces[i];
    }
  }
  __syncthreads();
  if (lane < exact_words && own[warp][lane] != 0) {
    atomicAdd(sum + lane, own[warp][lane]);
  }
}

AdamWScalars scalars_of(const AdamWArgs& args) {
  const auto step = static_cast<double>(args.step);
  return {.grad_scale = static_cast<float>(args.grad_scale),
          .decay = static_cast<float>(1.0 - args.lr * args.weight_decay),
          .beta2 = static_cast<float>(args.beta2),
          .one_minus_beta1 = static_cast<float>(1.0 - args.beta1),
          .one_minus_beta2 = static_cast<float>(1.0 - args.beta2),
          .step_size = static_cast<float>(args.lr / (1.0 - std::pow(args.beta1, step))),
          .correction2 = static_cast<float>(std::sqrt(1.0 - std::pow(args.beta2, step))),
          .eps = static_cast<float>(args.eps)};
}

}  // namespace

void adamw(Tensor& weight, const Tensor& grad, Tensor& exp_avg, Tensor& exp_avg_sq,
           const std::optional<Tensor>& compute, const AdamWArgs& args,
           const std::optional<AdamWPrevious>& previous) {
  const int64_t size = weight.numel();
  if (size == 0) {
    return;
  }
  const DeviceGuard guard(weight.device());
  const AdamWTensors tensors{.weight = output<float>(weight),
                             .grad = input<float>(grad),
                             .exp_avg = output<float>(exp_avg),
                             .exp_avg_sq = output<float>(exp_avg_sq),
                             .compute = output<at::BFloat16>(compute),
                             .previous_weight = previous ? output<float>(previous->weight) : nullptr,
                             .previous_exp_avg = previous ? output<float>(previous->exp_avg) : nullptr,
                             .previous_exp_avg_sq = previous ? output<float>(previous->exp_avg_sq) : nullptr};
  const bool vector =
      are_aligned(tensors.weight, tensors.grad, tensors.exp_avg, tensors.exp_avg_sq, tensors.compute,
                  tensors.previous_weight, tensors.previous_exp_avg, tensors.previous_exp_avg_sq);
  with_bool(vector, [&](auto is_vector) {
    launch("adamw", adamw_kernel<decltype(is_vector)::value>, blocks_of(size, "adamw"), threads_per_block, 0,
           tensors, size, scalars_of(args));
  });
}

void lion(Tensor& weight, const Tensor& grad, Tensor& exp_avg, const std::optional<Tensor>& compute,
          const LionArgs& args, const std::optional<LionPrevious>& previous) {
  const int64_t size = weight.numel();
  if (size == 0) {
    return;
  }
  const DeviceGuard guard(weight.device());
  const LionTensors tensors{.weight = output<float>(weight),
                            .grad = input<float>(grad),
                            .exp_avg = output<float>(exp_avg),
                            .compute = output<at::BFloat16>(compute),
                            .previous_weight = previous ? output<float>(previous->weight) : nullptr,
                            .previous_exp_avg = previous ? output<float>(previous->exp_avg) : nullptr};
  const LionScalars scalars{.grad_scale = static_cast<float>(args.grad_scale),
                            .decay = static_cast<float>(1.0 - args.lr * args.weight_decay),
                            .one_minus_beta1 = static_cast<float>(1.0 - args.beta1),
                            .one_minus_beta2 = static_cast<float>(1.0 - args.beta2),
                            .lr = static_cast<float>(args.lr)};
  const bool vector = are_aligned(tensors.weight, tensors.grad, tensors.exp_avg, tensors.compute,
                                  tensors.previous_weight, tensors.previous_exp_avg);
  with_bool(vector, [&](auto is_vector) {
    launch("lion", lion_kernel<decltype(is_vector)::value>, blocks_of(size, "lion"), threads_per_block, 0,
           tensors, size, scalars);
  });
}

void momentum(const Tensor& average, const Tensor& grad, Tensor& next, const MomentumArgs& args) {
  const char* const name = "momentum";
  const int64_t size = average.numel();
  if (size == 0) {
    return;
  }
  const DeviceGuard guard(average.device());
  with_type(next.scalar_type(), name, [&](auto tag) {
    using T = decltype(tag);
    with_bool(are_aligned(input<float>(average), input<float>(grad), input<T>(next)), [&](auto is_vector) {
      launch(name, momentum_kernel<T, decltype(is_vector)::value>, blocks_of(size, name), threads_per_block,
             0, input<float>(average), input<float>(grad), output<T>(next), size,
             static_cast<float>(args.grad_scale), static_cast<float>(1.0 - args.beta));
    });
  });
}

void descend(Tensor& weight, const Tensor& direction, const std::optional<Tensor>& compute,
             const DescentArgs& args) {
  const char* const name = "descend";
  const int64_t size = weight.numel();
  if (size == 0) {
    return;
  }
  const DeviceGuard guard(weight.device());
  at::BFloat16* const rounded = output<at::BFloat16>(compute);
  with_type(direction.scalar_type(), name, [&](auto tag) {
    using T = decltype(tag);
    const bool vector = are_aligned(input<float>(weight), input<T>(direction), rounded);
    with_bool(vector, [&](auto is_vector) {
      launch(name, descend_kernel<T, decltype(is_vector)::value>, blocks_of(size, name), threads_per_block, 0,
             output<float>(weight), input<T>(direction), rounded, size, static_cast<float>(args.decay),
             static_cast<float>(args.step));
    });
  });
}

void add_squares(const Tensor& x, int64_t place, Tensor& sum) {
  if (x.numel() == 0) {
    return;
  }
  const DeviceGuard guard(x.device());
  const int64_t end = place + x.numel();
  const int64_t blocks = ceil_div(end, squares_block) - place / squares_block;
  const int64_t grid = std::clamp<int64_t>(ceil_div(blocks, warps_per_block), 1, most_partial_blocks);
  // Packs lie in the buffer, whose start is aligned where x is a multiple of a pack away from it.
  const bool vector = place % N == 0 && are_aligned(input<float>(x));
  with_bool(vector, [&](auto is_vector) {
    launch("add_squares", add_squares_kernel<decltype(is_vector)::value>, static_cast<unsigned>(grid),
           threads_per_block, 0, input<float>(x), place, end, output<unsigned long long>(sum));
  });
}

void add_optim_kernels() {
  kernels::adamw.implement(BackEnd::cuda, adamw);
  kernels::add_squares.implement(BackEnd::cuda, add_squares);
  kernels::lion.implement(BackEnd::cuda, lion);
  kernels::momentum.implement(BackEnd::cuda, momentum);
  kernels::descend.implement(BackEnd::cuda, descend);
}

}  // namespace pptrain::kernels::cuda
