// What a kernel requires of its arguments, as one chain of calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace pptrain::kernels {

using at::Tensor;

// The checks of one call: its kernel's name, for messages, and the device that every tensor must share. Every
// check throws Error with the kernel's name, what is required and what was found.
class Checks {
 public:
  // `first` is the kernel's first argument, whose device the others must share.
  Checks(std::string_view kernel, const Tensor& first);

  // A contiguous tensor of this type and shape.
  const Checks& dense(std::string_view name, const Tensor& tensor, at::ScalarType type,
                      std::initializer_list<int64_t> shape) const;

  // The same, on the device of the others or on the host.
  const Checks& dense_or_on_host(std::string_view name, const Tensor& tensor, at::ScalarType type,
                                 std::initializer_list<int64_t> shape) const;

  // As dense, but with strides that are free but for the last, 1.
  const Checks& strided(std::string_view name, const Tensor& tensor, at::ScalarType type,
                        std::initializer_list<int64_t> shape) const;

  // A compute tensor (float32 or bfloat16) with so many dims, which other arguments are measured against.
  const Checks& compute(std::string_view name, const Tensor& tensor, int64_t dims) const;

  // A contiguous compute tensor with so many dims.
  const Checks& dense_compute(std::string_view name, const Tensor& tensor, int64_t dims) const;

  const Checks& require(bool holds, std::string_view what) const;

 private:
  void any(std::string_view name, const Tensor& tensor, at::ScalarType type, at::IntArrayRef shape) const;
  void contiguous(std::string_view name, const Tensor& tensor) const;
  [[noreturn]] void fail(const std::string& what) const;

  std::string_view kernel_;
  at::Device device_;
};

}  // namespace pptrain::kernels
