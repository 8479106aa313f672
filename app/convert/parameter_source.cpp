#include "app/convert/parameter_source.h"

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "app/convert/element_types.h"
#include "core/base/error.h"

namespace pptrain::app {

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
