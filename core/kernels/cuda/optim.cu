#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>

#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/host.h"
#include "core/kernels/cuda/math.h"
#include "core/kernels/exact_sum.h"
#include "core/kernels/kernels.h"

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

// A warp's sum of squares of one block of the buffer: lane l takes packs l, l + 32, ... of the block, of which
// elements outside of [begin, end) read as 0. x: the buffer's element `begin`.
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
    launch("adamw", adamw_kernel<decltype(is_vector)::value>,
           grid_size(ceil_div(ceil_div(size, N), threads_per_block), "adamw"), threads_per_block, 0, tensors,
           size, scalars_of(args));
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
}

}  // namespace pptrain::kernels::cuda
