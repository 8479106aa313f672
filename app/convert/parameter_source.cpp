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
#include <iterator>
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

std::vector<ParameterSource::Range> ParameterSource::ranges(std::vector<models::HfWeight> parts,
                                                            uint64_t elements) {
  if (!std::ranges::all_of(parts, &models::HfWeight::is_contiguous)) return {{0, elements, std::move(parts)}};
  std::vector<Range> result;
  for (models::HfWeight& part : parts) {
    const auto begin = static_cast<uint64_t>(part.first);
    const auto count = static_cast<uint64_t>(c10::multiply_integers(part.shape));
    result.push_back({begin, begin + count, {std::move(part)}});
  }
  return result;
}

std::span<const float> ParameterSource::values(const Range& range) {
  const std::string key = range.parts.front().tensor + ' ' + range.parts.front().parameter;
  if (held_ != key) {
    held_.clear();
    values_.reset();  // before there is memory for the next one
    values_ = at::empty({static_cast<int64_t>(range.end - range.begin)}, at::kFloat);
    for (models::HfWeight part : range.parts) {
      part.first -= static_cast<int64_t>(range.begin);
      read(part);
    }
    held_ = key;
  }
  return {values_.const_data_ptr<float>(), static_cast<size_t>(values_.numel())};
}

// Into its place in values_.
void ParameterSource::read(const models::HfWeight& part) {
  const at::Tensor place = part.view_of(values_);
  if (part.is_contiguous()) {
    at::Tensor whole = place.view(part.shape);
    reader_.read(model_file, part.parameter, whole);
    return;
  }
  at::Tensor whole = at::empty(part.shape, at::kFloat);
  reader_.read(model_file, part.parameter, whole);
  place.copy_(whole.view(place.sizes()));
}

io::SafetensorsWriter::Fill ParameterSource::fill(const io::TensorSpec& spec,
                                                  std::vector<models::HfWeight> parts, std::string what) {
  const auto elements = static_cast<uint64_t>(c10::multiply_integers(spec.shape));
  uint64_t there = 0;
  for (const models::HfWeight& part : parts) {
    const auto& shape = reader_.global_shape(model_file, part.parameter);
    there += static_cast<uint64_t>(c10::multiply_integers(shape));
    if (shape != part.shape) there = 0;
  }
  if (there != elements) {
    throw Error(fmt::format("{} has {} elements, but {} of the checkpoint{} fit it", what, elements,
                            parts.front().parameter,
                            parts.size() > 1 ? " and those that it shares it with do not" : " does not"));
  }
  return [this, all = ranges(std::move(parts), elements), type = spec.dtype, what = std::move(what)](
             uint64_t begin, std::span<std::byte> piece) {
    const uint64_t size = c10::elementSize(type);
    uint64_t element = begin / size;
    while (!piece.empty()) {
      const Range& range = *std::prev(std::ranges::upper_bound(all, element, {}, &Range::begin));
      const uint64_t within = element - range.begin;
      const uint64_t count = std::min<uint64_t>(piece.size() / size, range.end - element);
      to_type(type, values(range).subspan(within, count), piece.first(count * size), what);
      piece = piece.subspan(count * size);
      element += count;
    }
  };
}

}  // namespace pptrain::app
