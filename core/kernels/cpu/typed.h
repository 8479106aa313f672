// From tensors to the loops' raw pointers.
#pragma once

#include <ATen/core/Tensor.h>

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

template <class T>
const T* in(const at::Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}

template <class T>
const T* in(const std::optional<at::Tensor>& tensor) {
  return tensor ? in<T>(*tensor) : nullptr;
}

template <class T>
T* out(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

template <class T>
T* out(const std::optional<at::Tensor>& tensor) {
  return tensor ? out<T>(*tensor) : nullptr;
}

}  // namespace pptrain::kernels::cpu
