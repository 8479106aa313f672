// Host side of a kernel: choice of element type and of the vector path, launch sizes. Dtypes, shapes and
// strides have been checked (contracts.cpp); only limits of this back end are checked here.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "core/base/error.h"

namespace pptrain::kernels::cuda {

using at::Tensor;

// Errors: Error "CUDA kernel norm_rope takes head_dim up to 1024".
inline void require(bool holds, const char* kernel, const char* limit) {
  if (!holds) {
    throw Error(std::string("CUDA kernel ") + kernel + " takes " + limit);
  }
}

// Null for a tensor that is not defined; output likewise.
template <typename T>
const T* input(const Tensor& t) {
  return t.defined() ? static_cast<const T*>(t.const_data_ptr()) : nullptr;
}
template <typename T>
const T* input(const std::optional<Tensor>& t) {
  return t ? input<T>(*t) : nullptr;
}
template <typename T>
T* output(const Tensor& t) {
  return t.defined() ? static_cast<T*>(t.mutable_data_ptr()) : nullptr;
}
template <typename T>
T* output(const std::optional<Tensor>& t) {
  return t ? output<T>(*t) : nullptr;
}

// Calls f(T{}) with the C++ type of the activations.
template <typename F>
void with_type(at::ScalarType type, const char* kernel, F&& f) {
  if (type == at::kFloat) {
    f(float{});
  } else if (type == at::kBFloat16) {
    f(at::BFloat16{});
  } else {
    throw Error(std::string("CUDA kernel ") + kernel + ": activations must be float32 or bfloat16, not " +
                at::toString(type));
  }
}

// Calls f(std::true_type) or f(std::false_type), to make a run-time choice a template argument.
template <typename F>
void with_bool(bool value, F&& f) {
  if (value) {
    f(std::true_type{});
  } else {
    f(std::false_type{});
  }
}

// Whether every address (nullptr allowed) is aligned to 16 bytes.
template <typename... Pointers>
bool are_aligned(const Pointers*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Threads of a block that divides `work` items: whole warps, at most `most`.
constexpr unsigned threads_for(int64_t work, int64_t most) {
  return static_cast<unsigned>(std::clamp<int64_t>(ceil_div(work, 32) * 32, 32, most));
}

// A grid dimension. Errors: Error when the hardware's limit of 2^31 - 1 blocks is passed.
inline unsigned grid_size(int64_t blocks, const char* kernel) {
  require(blocks <= 0x7fffffff, kernel, "at most 2^31 - 1 rows in one call; use smaller microbatches");
  return static_cast<unsigned>(blocks);
}

// Splits rows into strips, one block each, as a function of the shape alone: at least `least` rows a strip,
// at most `most` strips.
struct Strips {
  int64_t rows;  // in each strip but perhaps the last
  int64_t count;
};
constexpr Strips split_rows(int64_t rows, int64_t least, int64_t most = 512) {
  const int64_t each = std::max(least, ceil_div(rows, most));
  return {each, ceil_div(rows, each)};
}

}  // namespace pptrain::kernels::cuda
