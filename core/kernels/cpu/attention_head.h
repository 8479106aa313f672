// What the CPU's attention kernels share: heads as matrices, and a thread's working memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "core/kernels/cpu/gemm.h"
#include "core/kernels/cpu/typed.h"

namespace pptrain::kernels::cpu {

// One head of a [tokens, heads, head_dim] tensor, from token `first` on: a row-major [tokens, head_dim]
// matrix.
template <class T>
Matrix<const T> head_in(const at::Tensor& x, int64_t first, int64_t head) {
  return {in<T>(x) + first * x.stride(0) + head * x.stride(1), x.stride(0)};
}
template <class T>
Matrix<T> head_out(const at::Tensor& x, int64_t first, int64_t head) {
  return {out<T>(x) + first * x.stride(0) + head * x.stride(1), x.stride(0)};
}
template <class T>
Matrix<T> from_row(Matrix<T> matrix, int64_t row) {
  return {matrix.data + row * matrix.stride, matrix.stride};
}

// Query rows taken at a time: products prefer many.
inline constexpr int64_t kMostRows = 128;

// Working memory of one thread for blocks of `size` scores: uninitialised, reused from block to block.
template <class T>
struct Workspace {
  Workspace(int64_t size, int64_t head_dim, bool backward)
      : scores(allocate<float>(size)),
        dweights(allocate<float>(backward ? size : 0)),
        weights(allocate<T>(size)),
        dscores(allocate<T>(backward ? size : 0)),
        product(allocate<float>(kMostRows * head_dim)),
        sums(allocate<float>(kMostRows)) {}

  template <class U>
  static std::unique_ptr<U[]> allocate(int64_t size) {
    return std::make_unique_for_overwrite<U[]>(static_cast<size_t>(size));
  }

  std::unique_ptr<float[]> scores, dweights;
  std::unique_ptr<T[]> weights, dscores;
  std::unique_ptr<float[]> product, sums;
};

}  // namespace pptrain::kernels::cpu
