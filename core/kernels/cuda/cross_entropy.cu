#include <ATen/core/Tensor.h>

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/host.h"
#include "core/kernels/cuda/rows.cuh"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cuda {
namespace {

constexpr int64_t most_cross_entropy_threads = 512;

// The label of a row that has no target.
constexpr int64_t ignored_label = -100;

struct Softmax {
  float max;
  float sum;  // of exp(x - max)
};

template <int N>
__device__ inline void add_pack(Softmax& own, const float (&x)[N]) {
  float max = own.max;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    max = fmaxf(max, x[j]);
  }
  own.sum *= expf(own.max - max);
  own.max = max;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    own.sum += expf(x[j] - max);
  }
}

// One pass over the row, two packs of a thread in flight, with a running maximum (Milakov & Gimelshein, arXiv
// 1805.02867). The maximum starts at the lowest finite number, so that logits of -inf count as 0 and a NaN
// stays one.
template <typename T, bool kVector>
__device__ Softmax softmax_of(const T* logits, int64_t vocab, float* scratch) {
  constexpr int N = pack_width<T>;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * N;
  Softmax own{-FLT_MAX, 0.0F};
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < vocab; i += 2 * stride) {
    float x[N];
    float after[N];
    const bool has_two = i + stride < vocab;
    load<kVector>(logits + i, vocab - i, x, -INFINITY);
    if (has_two) {
      load<kVector>(logits + i + stride, vocab - i - stride, after, -INFINITY);
    }
    add_pack(own, x);
    if (has_two) {
      add_pack(own, after);
    }
  }
  const float max = block_max(own.max, scratch);
  return {max, block_sum(own.sum * expf(own.max - max), scratch)};
}

// For a row that has no target: no loss, and gradients of 0.
template <bool kVector, typename T>
__device__ inline void ignore_row(T* logits, int64_t width, bool want_gradient, float* loss) {
  constexpr int N = pack_width<T>;
  if (threadIdx.x == 0) {
    *loss = 0.0F;
  }
  const int64_t stride = static_cast<int64_t>(blockDim.x) * N;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; want_gradient && i < width; i += stride) {
    const float zero[N] = {};
    store<kVector>(logits + i, width - i, zero);
  }
}

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
    return ignore_row<kVector>(logits, vocab, want_gradient, loss + row);
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

// One block a row.
template <typename T, bool kVector>
__global__ void softmax_statistics_kernel(const T* all_logits, const int64_t* labels, int64_t first_token,
                                          int64_t width, int64_t vocab, float* statistics) {
  __shared__ float scratch[warp_size];
  const int64_t row = blockIdx.x;
  const T* const logits = all_logits + row * width;
  float* const to = statistics + row * 3;
  const int64_t label = labels[row];
  if (label == ignored_label) {  // the whole block takes this way
    if (threadIdx.x < 3) {
      to[threadIdx.x] = 0.0F;
    }
    return;
  }
  const Softmax softmax = softmax_of<T, kVector>(logits, width, scratch);
  if (threadIdx.x == 0) {
    const int64_t here = label - first_token;
    const bool known = label >= 0 && label < vocab;
    to[0] = softmax.max;
    to[1] = softmax.sum;
    to[2] = here >= 0 && here < width ? static_cast<float>(logits[here]) : (known ? 0.0F : NAN);
  }
}

// One block a row. Every thread combines the ranks' statistics, in rank order.
template <typename T, bool kVector>
__global__ void cross_entropy_part_kernel(T* all_logits, const int64_t* labels, const float* statistics,
                                          int64_t ranks, int64_t rows, int64_t first_token, int64_t width,
                                          bool want_gradient, float* loss) {
  constexpr int N = pack_width<T>;
  const int64_t row = blockIdx.x;
  T* const logits = all_logits + row * width;
  const int64_t label = labels[row];
  const int64_t first = static_cast<int64_t>(threadIdx.x) * N;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * N;
  if (label == ignored_label) {
    return ignore_row<kVector>(logits, width, want_gradient, loss + row);
  }
  const float* const own = statistics + row * 3;
  float max = own[0];
  for (int64_t rank = 1; rank < ranks; ++rank) {
    max = fmaxf(max, own[rank * rows * 3]);
  }
  float sum = 0.0F;
  float target = 0.0F;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const float* const of = own + rank * rows * 3;
    sum += of[1] * expf(of[0] - max);
    target += of[2];
  }
  if (threadIdx.x == 0) {
    loss[row] = logf(sum) + (max - target);
  }
  if (!want_gradient) {
    return;
  }
  const int64_t here = label - first_token;
  const float scale = target == target ? 1.0F / sum : NAN;  // a label outside of the vocabulary is NaN
  for (int64_t i = first; i < width; i += stride) {
    float x[N];
    load<kVector>(logits + i, width - i, x);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      x[j] = expf(x[j] - max) * scale - (i + j == here ? 1.0F : 0.0F);
    }
    store<kVector>(logits + i, width - i, x);
  }
}

template <typename T, bool kVector>
__global__ void softcap_kernel(T* logits, int64_t width, float scale, float cap) {
  constexpr int N = pack_width<T>;
  T* const row = logits + blockIdx.x * width;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < width;
       i += static_cast<int64_t>(blockDim.x) * N) {
    float x[N];
    load<kVector>(row + i, width - i, x);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      x[j] = cap > 0.0F ? cap * tanhf(x[j] * (scale / cap)) : x[j] * scale;
    }
    store<kVector>(row + i, width - i, x);
  }
}

template <typename T, bool kVector>
__global__ void softcap_backward_kernel(const T* capped, T* dlogits, int64_t width, float scale, float cap) {
  constexpr int N = pack_width<T>;
  const int64_t first = blockIdx.x * width;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < width;
       i += static_cast<int64_t>(blockDim.x) * N) {
    float y[N];
    float d[N];
    load<kVector>(capped + first + i, width - i, y);
    load<kVector>(dlogits + first + i, width - i, d);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float t = y[j] / cap;
      d[j] *= scale * (1.0F - t * t);
    }
    store<kVector>(dlogits + first + i, width - i, d);
  }
}

}  // namespace

void cross_entropy(Tensor& logits, const Tensor& labels, Tensor& loss, bool want_gradient) {
  const char* const name = "cross_entropy";
  const auto run = [&]<typename T, bool kVector>(T, std::bool_constant<kVector>, auto blocks, auto threads) {
    launch(name, cross_entropy_kernel<T, kVector>, blocks, threads, 0, output<T>(logits),
           input<int64_t>(labels), logits.size(1), want_gradient, output<float>(loss));
  };
  for_rows(name, logits, most_cross_entropy_threads, run, logits);
}

void softmax_statistics(const Tensor& logits, const Tensor& labels, VocabularyPart part, Tensor& statistics) {
  const char* const name = "softmax_statistics";
  const auto run = [&]<typename T, bool kVector>(T, std::bool_constant<kVector>, auto blocks, auto threads) {
    launch(name, softmax_statistics_kernel<T, kVector>, blocks, threads, 0, input<T>(logits),
           input<int64_t>(labels), part.first, logits.size(1), part.vocab, output<float>(statistics));
  };
  for_rows(name, logits, most_cross_entropy_threads, run, logits);
}

void cross_entropy_part(Tensor& logits, const Tensor& labels, const Tensor& statistics, VocabularyPart part,
                        Tensor& loss, bool want_gradient) {
  const char* const name = "cross_entropy_part";
  const auto run = [&]<typename T, bool kVector>(T, std::bool_constant<kVector>, auto blocks, auto threads) {
    launch(name, cross_entropy_part_kernel<T, kVector>, blocks, threads, 0, output<T>(logits),
           input<int64_t>(labels), input<float>(statistics), statistics.size(0), logits.size(0), part.first,
           logits.size(1), want_gradient, output<float>(loss));
  };
  for_rows(name, logits, most_cross_entropy_threads, run, logits);
}

void softcap(Tensor& logits, double scale, double cap) {
  const char* const name = "softcap";
  const auto run = [&]<typename T, bool kVector>(T, std::bool_constant<kVector>, auto blocks, auto threads) {
    launch(name, softcap_kernel<T, kVector>, blocks, threads, 0, output<T>(logits), logits.size(1),
           static_cast<float>(scale), static_cast<float>(cap));
  };
  for_rows(name, logits, most_cross_entropy_threads, run, logits);
}

void softcap_backward(const Tensor& capped, double scale, double cap, Tensor& dlogits) {
  const char* const name = "softcap_backward";
  const auto run = [&]<typename T, bool kVector>(T, std::bool_constant<kVector>, auto blocks, auto threads) {
    launch(name, softcap_backward_kernel<T, kVector>, blocks, threads, 0, input<T>(capped),
           output<T>(dlogits), dlogits.size(1), static_cast<float>(scale), static_cast<float>(cap));
  };
  for_rows(name, dlogits, most_cross_entropy_threads, run, capped, dlogits);
}

void add_cross_entropy_kernels() {
  kernels::cross_entropy.implement(BackEnd::cuda, cross_entropy);
  kernels::softmax_statistics.implement(BackEnd::cuda, softmax_statistics);
  kernels::cross_entropy_part.implement(BackEnd::cuda, cross_entropy_part);
  kernels::softcap.implement(BackEnd::cuda, softcap);
  kernels::softcap_backward.implement(BackEnd::cuda, softcap_backward);
}

}  // namespace pptrain::kernels::cuda
