// From tensors to the loops' raw pointers.
#pragma once

#include <ATen/core/Tensor.h>

#include <bit>
#include <cstdint>
#include <optional>

namespace pptrain::kernels::cpu {

// Calls f(T{}) with the loops' T of a tensor: float, or uint16_t for bfloat16.
template <class F>
void by_type(const at::Tensor& tensor, F f) {
  if (tensor.scalar_type() == at::kBFloat16) {
    f(uint16_t{});
  } else {
    f(float{});
  }
}

inline float to_float(float value) {
  return value;
}
inline float to_float(uint16_t bfloat16) {
  return std::bit_cast<float>(uint32_t{bfloat16} << 16);
}

// Null for a tensor that is not defined; out likewise.
template <class T>
const T* in(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<const T*>(tensor.const_data_ptr()) : nullptr;
}

template <class T>
const T* in(const std::optional<at::Tensor>& tensor) {
  return tensor ? in<T>(*tensor) : nullptr;
}

template <class T>
T* out(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<T*>(tensor.mutable_data_ptr()) : nullptr;
}

template <class T>
T* out(const std::optional<at::Tensor>& tensor) {
  return tensor ? out<T>(*tensor) : nullptr;
}

}  // namespace pptrain::kernels::cpu
