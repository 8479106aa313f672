#include "core/kernels/checks.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include "core/base/error.h"
#include "core/kernels/dry_run.h"

namespace pptrain::kernels {

Checks::Checks(std::string_view kernel, const Tensor& first)
    : kernel_(kernel), device_(first.defined() ? first.device() : at::Device(at::kCPU)) {
  if (!first.defined()) fail("the first argument is missing");
  const bool is_dry_run = device_.is_meta() && DryRun::innermost() != nullptr;
  if (!device_.is_cpu() && !device_.is_cuda() && !is_dry_run) {
    fail(fmt::format("no back end for device {}{}", device_.str(),
                     device_.is_meta() ? " outside of a dry run" : ""));
  }
}

const Checks& Checks::dense(std::string_view name, const Tensor& tensor, at::ScalarType type,
                            std::initializer_list<int64_t> shape) const {
  any(name, tensor, type, shape);
  contiguous(name, tensor);
  return *this;
}

const Checks& Checks::dense_or_on_host(std::string_view name, const Tensor& tensor, at::ScalarType type,
                                       std::initializer_list<int64_t> shape) const {
  Checks checks = *this;
  if (tensor.defined() && tensor.is_cpu()) checks.device_ = at::kCPU;
  checks.dense(name, tensor, type, shape);
  return *this;
}

const Checks& Checks::strided(std::string_view name, const Tensor& tensor, at::ScalarType type,
                              std::initializer_list<int64_t> shape) const {
  any(name, tensor, type, shape);
  if (tensor.stride(-1) != 1) {
    fail(fmt::format("the last dim of {} must have stride 1, not {}", name, tensor.stride(-1)));
  }
  return *this;
}

const Checks& Checks::compute(std::string_view name, const Tensor& tensor, int64_t dims) const {
  if (!tensor.defined() || tensor.dim() != dims) {
    fail(fmt::format("{} must have {} dims", name, dims));
  }
  if (tensor.scalar_type() != at::kFloat && tensor.scalar_type() != at::kBFloat16) {
    fail(fmt::format("{} must be float32 or bfloat16, not {}", name, c10::toString(tensor.scalar_type())));
  }
  return *this;
}

const Checks& Checks::dense_compute(std::string_view name, const Tensor& tensor, int64_t dims) const {
  compute(name, tensor, dims);
  any(name, tensor, tensor.scalar_type(), tensor.sizes());
  contiguous(name, tensor);
  return *this;
}

const Checks& Checks::require(bool holds, std::string_view what) const {
  if (!holds) fail(std::string(what));
  return *this;
}

void Checks::any(std::string_view name, const Tensor& tensor, at::ScalarType type,
                 at::IntArrayRef shape) const {
  if (!tensor.defined()) {
    fail(fmt::format("{} is missing", name));
  }
  if (tensor.device() != device_ || tensor.scalar_type() != type || tensor.sizes() != shape) {
    fail(fmt::format("{} must be {} [{}] on {}, not {} [{}] on {}", name, c10::toString(type),
                     fmt::join(shape, ", "), device_.str(), c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes().vec(), ", "), tensor.device().str()));
  }
}

void Checks::contiguous(std::string_view name, const Tensor& tensor) const {
  if (!tensor.is_contiguous()) fail(fmt::format("{} must be contiguous", name));
}

void Checks::fail(const std::string& what) const {
  throw Error(fmt::format("kernel {}: {}", kernel_, what));
}

}  // namespace pptrain::kernels
