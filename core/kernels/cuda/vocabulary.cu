#include "core/kernels/vocabulary.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/sub.h>

#include <cmath>

#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/host.h"
#include "core/kernels/cuda/softmax.cuh"

namespace pptrain::kernels::cuda {

void embedding_backward(const Tensor& tokens, const Tensor& dy, Tensor& weight_grad);  // embedding.cu

namespace {

constexpr int64_t most_vocabulary_threads = 512;

// One block a row. A token outside the vocabulary gives NaN, one of another rank zeros.
template <typename T, bool kVector>
__global__ void embedding_part_kernel(const int64_t* tokens, const T* weight, int64_t first_token,
                                      int64_t held, int64_t vocab, int64_t dim, T* out) {
  constexpr int N = pack_width<T>;
  const int64_t row = blockIdx.x;
  const int64_t token = tokens[row];
  const int64_t here = token - first_token;
  const bool holds = here >= 0 && here < held;
  const float other = token >= 0 && token < vocab ? 0.0F : NAN;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * N;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * N; i < dim; i += stride) {
    float w[N];
    if (holds) {
      load<kVector>(weight + here * dim + i, dim - i, w);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        w[j] = other;
      }
    }
    store<kVector>(out + row * dim + i, dim - i, w);
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
    if (threadIdx.x == 0) {
      loss[row] = 0.0F;
    }
    for (int64_t i = first; want_gradient && i < width; i += stride) {
      const float zero[N] = {};
      store<kVector>(logits + i, width - i, zero);
    }
    return;
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

}  // namespace

void embedding_part(const Tensor& tokens, const Tensor& weight, VocabularyPart part, Tensor& out) {
  const char* const name = "embedding_part";
  const int64_t rows = out.size(0);
  const int64_t dim = out.size(1);
  if (out.numel() == 0) {
    return;
  }
  const DeviceGuard guard(out.device());
  with_type(out.scalar_type(), name, [&](auto tag) {
    using T = decltype(tag);
    constexpr int N = pack_width<T>;
    with_bool(dim % N == 0 && are_aligned(input<T>(weight), input<T>(out)), [&](auto is_vector) {
      launch(name, embedding_part_kernel<T, decltype(is_vector)::value>, grid_size(rows, name),
             threads_for(ceil_div(dim, N), most_vocabulary_threads), 0, input<int64_t>(tokens),
             input<T>(weight), part.first, weight.size(0), part.vocab, dim, output<T>(out));
    });
  });
}

// embedding_backward passes over tokens outside of its table.
void embedding_part_backward(const Tensor& tokens, const Tensor& dy, VocabularyPart part,
                             Tensor& weight_grad) {
  embedding_backward(at::sub(tokens, part.first), dy, weight_grad);
}

void softmax_statistics(const Tensor& logits, const Tensor& labels, VocabularyPart part, Tensor& statistics) {
  const char* const name = "softmax_statistics";
  const int64_t rows = logits.size(0);
  const int64_t width = logits.size(1);
  if (logits.numel() == 0) {
    return;
  }
  const DeviceGuard guard(logits.device());
  with_type(logits.scalar_type(), name, [&](auto tag) {
    using T = decltype(tag);
    constexpr int N = pack_width<T>;
    with_bool(width % N == 0 && are_aligned(input<T>(logits)), [&](auto is_vector) {
      launch(name, softmax_statistics_kernel<T, decltype(is_vector)::value>, grid_size(rows, name),
             threads_for(ceil_div(width, N), most_vocabulary_threads), 0, input<T>(logits),
             input<int64_t>(labels), part.first, width, part.vocab, output<float>(statistics));
    });
  });
}

void cross_entropy_part(Tensor& logits, const Tensor& labels, const Tensor& statistics, VocabularyPart part,
                        Tensor& loss, bool want_gradient) {
  const char* const name = "cross_entropy_part";
  const int64_t rows = logits.size(0);
  const int64_t width = logits.size(1);
  if (logits.numel() == 0) {
    return;
  }
  const DeviceGuard guard(logits.device());
  with_type(logits.scalar_type(), name, [&](auto tag) {
    using T = decltype(tag);
    constexpr int N = pack_width<T>;
    with_bool(width % N == 0 && are_aligned(input<T>(logits)), [&](auto is_vector) {
      launch(name, cross_entropy_part_kernel<T, decltype(is_vector)::value>, grid_size(rows, name),
             threads_for(ceil_div(width, N), most_vocabulary_threads), 0, output<T>(logits),
             input<int64_t>(labels), input<float>(statistics), statistics.size(0), rows, part.first, width,
             want_gradient, output<float>(loss));
    });
  });
}

void add_vocabulary_kernels() {
  kernels::embedding_part.implement(BackEnd::cuda, embedding_part);
  kernels::embedding_part_backward.implement(BackEnd::cuda, embedding_part_backward);
  kernels::softmax_statistics.implement(BackEnd::cuda, softmax_statistics);
  kernels::cross_entropy_part.implement(BackEnd::cuda, cross_entropy_part);
}

}  // namespace pptrain::kernels::cuda
