#include "app/convert/parameter_source.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isinf.h>
#include <c10/util/accumulate.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/io/safetensors.h"

namespace pptrain::app {

namespace {

// On the bytes, which it only reads.
at::Tensor view(at::ScalarType type, std::span<const std::byte> bytes) {
  const auto elements = static_cast<int64_t>(bytes.size() / c10::elementSize(type));
  return at::from_blob(const_cast<std::byte*>(bytes.data()), {elements}, at::TensorOptions().dtype(type));
}

}  // namespace

void check_exact_in_float(at::ScalarType type, const std::string& what) {
  if (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf) return;
  throw Error(
      fmt::format("{} is stored as {}; checkpoints hold float32, which keeps F32, BF16 and F16 exactly, and "
                  "no other type",
                  what, io::dtype_name(type)));
}

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

using checkpoint::model_file;

std::span<const float> ParameterSource::values(const std::string& parameter) {
  if (held_ != parameter) {
    held_.clear();
    values_.reset();  // before there is memory for the next one
    values_ = at::empty(reader_.global_shape(model_file, parameter), at::kFloat);
    reader_.read(model_file, parameter, values_);
    held_ = parameter;
  }
  return {values_.const_data_ptr<float>(), static_cast<size_t>(values_.numel())};
}

io::SafetensorsWriter::Fill ParameterSource::fill(const io::TensorSpec& spec,
                                                  std::vector<std::string> parameters, std::string what) {
  const auto elements = static_cast<uint64_t>(c10::multiply_integers(spec.shape));
  const uint64_t each = elements / parameters.size();
  for (const std::string& parameter : parameters) {
    const auto& shape = reader_.global_shape(model_file, parameter);
    if (static_cast<uint64_t>(c10::multiply_integers(shape)) * parameters.size() != elements) {
      throw Error(
          fmt::format("{} has {} elements, but {} of the checkpoint has {}, and there are {} of these", what,
                      elements, parameter, c10::multiply_integers(shape), parameters.size()));
    }
  }
  return [this, each, type = spec.dtype, parameters = std::move(parameters), what = std::move(what)](
             uint64_t begin, std::span<std::byte> piece) {
    const uint64_t size = c10::elementSize(type);
    uint64_t element = begin / size;
    while (!piece.empty()) {
      const uint64_t within = element % each;
      const uint64_t count = std::min<uint64_t>(piece.size() / size, each - within);
      to_type(type, values(parameters[element / each]).subspan(within, count), piece.first(count * size),
              what);
      piece = piece.subspan(count * size);
      element += count;
    }
  };
}

}  // namespace pptrain::app
