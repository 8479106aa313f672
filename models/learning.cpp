#include "models/learning.h"

#include <fnmatch.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/nn/adapter.h"
#include "core/optim/groups.h"

namespace pptrain::models {
namespace {

// "layers.3.attn.q" of "layers.3.attn.q.weight".
std::string module_of(std::string_view parameter) {
  return std::string(parameter.substr(0, parameter.rfind('.')));
}

bool matches(const std::string& pattern, const std::string& parameter) {
  return fnmatch(pattern.c_str(), module_of(parameter).c_str(), 0) == 0 ||
         fnmatch(pattern.c_str(), parameter.c_str(), 0) == 0;
}

bool matches_any(const std::vector<std::string>& patterns, const std::string& parameter) {
  return std::ranges::any_of(patterns, [&](const std::string& p) { return matches(p, parameter); });
}

}  // namespace

nn::Learning learning_of(const ModelConfig& model) {
  if (model.lora.rank > 0) {
    return {.freezes = [](const nn::ParameterSpec& spec) { return !nn::adapted_weight(spec.name); },
            .adapts = [targets = model.lora.targets](
                          const nn::ParameterSpec& spec) { return matches_any(targets, spec.name); },
            .rank = model.lora.rank,
            .scale = model.lora.alpha / static_cast<double>(model.lora.rank)};
  }
  if (!freezes(model)) return {};
  return {.freezes = [groups = model.groups](const nn::ParameterSpec& spec) {
    const config::OptimizerGroup* group = optim::find_group(groups, spec);
    return group != nullptr && group->frozen;
  }};
}

bool freezes(const ModelConfig& model) {
  return model.lora.rank > 0 || std::ranges::any_of(model.groups, &config::OptimizerGroup::frozen);
}

std::map<size_t, std::string> check_targets(const config::LoraSection& lora,
                                            std::span<const nn::ParameterSpec* const> specs) {
  std::map<size_t, std::string> problems;
  const bool by_default = lora.targets == config::LoraSection().targets;
  size_t served = 0;
  for (size_t i = 0; i < lora.targets.size(); ++i) {
    const std::string& target = lora.targets[i];
    const nn::ParameterSpec* other = nullptr;
    bool serves = false;
    for (const nn::ParameterSpec* spec : specs) {
      const auto weight = nn::adapted_weight(spec->name);
      serves = serves || (weight && matches(target, *weight));
      if (!weight && other == nullptr && matches(target, spec->name)) other = spec;
    }
    if (serves) {
      ++served;
    } else if (!by_default) {
      problems[i] = other == nullptr
                        ? fmt::format(
                              "\"{}\" matches no parameter of the model: give a pattern such as "
                              "\"*.q\" or \"layers.0.*.weight\"",
                              target)
                        : fmt::format(
                              "\"{}\" matches {}, which can have no adapter: the projections q, k, v "
                              "and o of attention and gate, up and down of dense layers can",
                              target, other->name);
    }
  }
  if (served == 0 && problems.empty()) problems[0] = "no layer of the model would have an adapter";
  return problems;
}

}  // namespace pptrain::models
