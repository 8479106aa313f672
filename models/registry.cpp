#include "models/registry.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <ranges>

#include "core/base/error.h"
#include "models/model_config.h"

namespace pptrain::models {

bool Architecture::takes(const HfKey::Field& field) const {
  return std::ranges::find(hf_keys, field, &HfKey::field) != hf_keys.end();
}

void fill_layers(config::ModelSection& model) {
  const Decoder& decoder = find_architecture(model.arch).decoder;
  const int full = decoder.full_attention_every, still = decoder.no_rope_every;
  if (model.sliding_window > 0 && full > 0 && model.layer_types.empty()) {
    for (int64_t i = 1; i <= model.num_hidden_layers; ++i)
      model.layer_types.emplace_back(i % full == 0 ? full_attention : sliding_attention);
  }
  if (still == 0 || !model.no_rope_layers.empty()) return;
  for (int64_t i = 1; i <= model.num_hidden_layers; ++i) model.no_rope_layers.push_back(i % still != 0);
}

std::string architecture_names(std::string_view separator) {
  return fmt::format("{}", fmt::join(architectures | std::views::transform(&Architecture::name), separator));
}

const Architecture& find_architecture(std::string_view name) {
  const auto* const found = std::ranges::find(architectures, name, &Architecture::name);
  if (found != std::end(architectures)) return **found;
  throw UsageError(
      fmt::format("model.arch: \"{}\" is not known; valid are \"{}\"", name, architecture_names("\", \"")));
}

}  // namespace pptrain::models
