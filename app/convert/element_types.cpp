#include "app/convert/element_types.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isinf.h>
#include <spdlog/fmt/fmt.h>

#include <cstdint>
#include <cstring>

#include "core/base/error.h"
#include "core/io/safetensors.h"

namespace pptrain::app {

namespace {

// A tensor over the bytes, which it only reads.
at::Tensor view(at::ScalarType type, std::span<const std::byte> bytes) {
  const auto elements = static_cast<int64_t>(bytes.size() / c10::elementSize(type));
  return at::from_blob(const_cast<std::byte*>(bytes.data()), {elements}, at::TensorOptions().dtype(type));
}

}  // namespace

void to_float(at::ScalarType type, std::span<const std::byte> from, std::span<std::byte> to,
              const std::string& what) {
  if (type == at::kFloat) {
    std::memcpy(to.data(), from.data(), from.size());
    return;
  }
  const at::Tensor values = view(type, from).to(at::kFloat);
  if (std::memcmp(values.to(type).const_data_ptr(), from.data(), from.size()) != 0) {
    throw Error(
        fmt::format("{} holds values that are no number, whose bits would not come back from float32", what));
  }
  std::memcpy(to.data(), values.const_data_ptr(), to.size());
}

void to_type(at::ScalarType type, std::span<const float> from, std::span<std::byte> to,
             const std::string& what) {
  const at::Tensor values = view(at::kFloat, std::as_bytes(from));
  const at::Tensor converted = values.to(type);
  if (type != at::kFloat && !at::isinf(converted).equal(at::isinf(values)))
    throw Error(fmt::format("{} holds values beyond the range of {}", what, io::dtype_name(type)));
  std::memcpy(to.data(), converted.const_data_ptr(), to.size());
}

}  // namespace pptrain::app
