#include <ATen/core/Tensor.h>

#include <cmath>

#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/host.h"
#include "core/kernels/cuda/softmax.cuh"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cuda {
namespace {

constexpr int64_t most_cross_entropy_threads = 512;

// One block a row. A label that is neither -100 nor in [0, vocab) gives NaN, never an access outside the row.
template <typename T, bool kVector>
__global__ void cross_entropy_kernel(T* all_logits, const int64_t* labels, int64_t vocab, bool want_gradient,
                                     float* loss) {
  constexpr int N = pack_width<T>;
  __shared__ float scratch[warp_size];
  const int64_t row = blockIdx.x;
  T* const logits = all_logits + row * vocab;
  const int64_t label = labels[row];
  const int64_t first = static_cast<int64_t>(threadIdx.x) * N;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * N;
  if (label == ignored_label) {  // the whole block takes this way
    if (threadIdx.x == 0) {
      loss[row] = 0.0F;
    }
    for (int64_t i = first; want_gradient && i < vocab; i += stride) {
      const float zero[N] = {};
      store<kVector>(logits + i, vocab - i, zero);
    }
    return;
  }
  const bool known = label >= 0 && label < vocab;
  // Read before the barriers of the reductions, after which the gradient overwrites it.
  const float target = threadIdx.x == 0 && known ? static_cast<float>(logits[label]) : NAN;
  const Softmax softmax = softmax_of<T, kVector>(logits, vocab, scratch);
  if (threadIdx.x == 0) {
    loss[row] = logf(softmax.sum) + (softmax.max - target);
  }
  if (!want_gradient) {
    return;
  }
  const float scale = known ? 1.0F / softmax.sum : NAN;
  const auto write_gradient = [&](int64_t i, float(&x)[N]) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      x[j] = expf(x[j] - softmax.max) * scale - (i + j == label ? 1.0F : 0.0F);
    }
    store<kVector>(logits + i, vocab - i, x);
  };
  for (int64_t i = first; i < vocab; i += 2 * stride) {  // two packs in flight
    float x[N];
    float after[N];
    const bool has_two = i + stride < vocab;
    load<kVector>(logits + i, vocab - i, x);
    if (has_two) {
      load<kVector>(logits + i + stride, vocab - i - stride, after);
    }
    write_gradient(i, x);
    if (has_two) {
      write_gradient(i + stride, after);
    }
  }
}

}  // namespace

void cross_entropy(Tensor& logits, const Tensor& labels, Tensor& loss, bool want_gradient) {
  const char* const name = "cross_entropy";
  const int64_t rows = logits.size(0);
  const int64_t vocab = logits.size(1);
  if (logits.numel() == 0) {
    return;
  }
  const DeviceGuard guard(logits.device());
  with_type(logits.scalar_type(), name, [&](auto tag) {
    using T = decltype(tag);
    constexpr int N = pack_width<T>;
    with_bool(vocab % N == 0 && are_aligned(input<T>(logits)), [&](auto is_vector) {
      launch(name, cross_entropy_kernel<T, decltype(is_vector)::value>, grid_size(rows, name),
             threads_for(ceil_div(vocab, N), most_cross_entropy_threads), 0, output<T>(logits),
             input<int64_t>(labels), vocab, want_gradient, output<float>(loss));
    });
  });
}

void add_cross_entropy_kernels() {
  kernels::cross_entropy.implement(BackEnd::cuda, cross_entropy);
}

}  // namespace pptrain::kernels::cuda
