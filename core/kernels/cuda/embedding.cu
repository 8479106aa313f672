#include <ATen/core/Tensor.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/sub.h>

#include <cmath>

#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/host.h"
#include "core/kernels/cuda/rows.cuh"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cuda {
namespace {

constexpr int64_t most_embedding_threads = 256;
constexpr int64_t backward_threads = 128;

// One block a row. A token outside the vocabulary gives NaN, one of another rank zeros; neither reads outside
// the table.
template <typename T, bool kVector>
__global__ void embedding_kernel(const int64_t* tokens, const T* weight, int64_t first_token, int64_t held,
                                 int64_t vocab, int64_t dim, T* out) {
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

// Tokens come sorted, with the rows they came from; the sort is stable, so equal tokens are in row order. The
// block at the start of a run (x) adds all of the run's rows for its columns (y), one after another; the
// others leave.
template <typename T, bool kVector>
__global__ void embedding_backward_kernel(const int64_t* sorted, const int64_t* row_of, const T* dy,
                                          int64_t rows, int64_t vocab, int64_t dim, float* weight_grad) {
  constexpr int N = pack_width<T>;
  const int64_t first = blockIdx.x;
  const int64_t token = sorted[first];
  const int64_t i = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  if ((first > 0 && sorted[first - 1] == token) || token < 0 || token >= vocab || i >= dim) {
    return;
  }
  const int64_t end = first_above(sorted, first + 1, rows, token);
  float* const target = weight_grad + token * dim + i;
  float sum[N];
  load<kVector>(target, dim - i, sum);
#pragma unroll 4
  for (int64_t at = first; at < end; ++at) {
    float g[N];
    load<kVector>(dy + row_of[at] * dim + i, dim - i, g);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      sum[j] += g[j];
    }
  }
  store<kVector>(target, dim - i, sum);
}

}  // namespace

void embedding(const Tensor& tokens, const Tensor& weight, VocabularyPart part, Tensor& out) {
  const char* const name = "embedding";
  const auto run = [&]<typename T, bool kVector>(T, std::bool_constant<kVector>, auto blocks, auto threads) {
    launch(name, embedding_kernel<T, kVector>, blocks, threads, 0, input<int64_t>(tokens), input<T>(weight),
           part.first, weight.size(0), part.vocab, out.size(1), output<T>(out));
  };
  for_rows(name, out, most_embedding_threads, run, weight, out);
}

// Tokens that the table does not hold are passed over.
void embedding_backward(const Tensor& tokens, const Tensor& dy, VocabularyPart part, Tensor& weight_grad) {
  const char* const name = "embedding_backward";
  const int64_t rows = dy.size(0);
  const int64_t dim = dy.size(1);
  const auto run = [&]<typename T, bool kVector>(T, std::bool_constant<kVector>) {
    const Tensor here = part.first == 0 ? tokens : at::sub(tokens, part.first);
    const auto [sorted, row_of] = at::sort(here, /*stable=*/true, /*dim=*/0, /*descending=*/false);
    const int64_t packs = ceil_div(dim, pack_width<T>);
    const unsigned threads = threads_for(packs, backward_threads);
    launch(name, embedding_backward_kernel<T, kVector>, grid_of_packs(rows, packs, threads, name), threads, 0,
           input<int64_t>(sorted), input<int64_t>(row_of), input<T>(dy), rows, weight_grad.size(0), dim,
           output<float>(weight_grad));
  };
  with_packs(name, dy, run, dy, weight_grad);
}

void add_embedding_kernels() {
  kernels::embedding.implement(BackEnd::cuda, embedding);
  kernels::embedding_backward.implement(BackEnd::cuda, embedding_backward);
}

}  // namespace pptrain::kernels::cuda
