#include "models/weight_map.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/base/error.h"

namespace pptrain::models {
namespace {

// The numbers that stand at the pattern's '*'s; nothing if `name` is not the pattern's.
std::optional<std::vector<std::string_view>> match(std::string_view pattern, std::string_view name) {
  std::vector<std::string_view> numbers;
  for (size_t star = pattern.find('*'); star != std::string_view::npos; star = pattern.find('*')) {
    if (!name.starts_with(pattern.substr(0, star))) return std::nullopt;
    name.remove_prefix(star);
    pattern.remove_prefix(star + 1);
    const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    if (digits == 0) return std::nullopt;
    numbers.push_back(name.substr(0, digits));
    name.remove_prefix(digits);
  }
  return name == pattern ? std::optional(std::move(numbers)) : std::nullopt;
}

std::string fill(std::string_view pattern, const std::vector<std::string_view>& numbers) {
  std::string result;
  for (const std::string_view number : numbers) {
    const size_t star = pattern.find('*');
    result.append(pattern.substr(0, star)).append(number);
    pattern.remove_prefix(star + 1);
  }
  return result.append(pattern);
}

// `<module>.<weight|bias>`, taken apart.
struct ModuleName {
  std::string_view module, kind;
};
std::optional<ModuleName> split(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view kind = name.substr(dot + 1);
  if (kind != "weight" && kind != "bias") return std::nullopt;
  return ModuleName{name.substr(0, dot), kind};
}

// All translations, first among `names`, then among decoder_weights.
std::vector<std::string> translate(std::span<const WeightName> names, std::string_view name,
                                   std::string_view WeightName::*from, std::string_view WeightName::*to) {
  std::vector<std::string> result;
  const auto parts = split(name);
  if (!parts) return result;
  for (const std::span<const WeightName> list : {names, std::span<const WeightName>(decoder_weights)}) {
    for (const WeightName& module : list) {
      if (const auto numbers = match(module.*from, parts->module))
        result.push_back(fmt::format("{}.{}", fill(module.*to, *numbers), parts->kind));
    }
    if (!result.empty()) break;
  }
  return result;
}

struct FusedName {
  std::string_view global, hf;
  int64_t part, parts;
};
constexpr FusedName fused_names[] = {
    {"layers.*.mlp.experts.*.gate", "model.layers.*.mlp.experts.gate_up_proj", 0, 2},
    {"layers.*.mlp.experts.*.up", "model.layers.*.mlp.experts.gate_up_proj", 1, 2},
    {"layers.*.mlp.experts.*.down", "model.layers.*.mlp.experts.down_proj", 0, 1},
};

}  // namespace

std::vector<std::string> hf_names(std::span<const WeightName> names, std::string_view global, bool tied) {
  if (tied && global == "head.weight") global = "embed.weight";
  auto result = translate(names, global, &WeightName::global, &WeightName::hf);
  if (result.empty()) throw Error(fmt::format("no Hugging Face name is known for the parameter {}", global));
  return result;
}

std::string hf_name(std::span<const WeightName> names, std::string_view global, bool tied) {
  return hf_names(names, global, tied).front();
}

std::optional<std::string> global_name(std::span<const WeightName> names, std::string_view hf) {
  auto result = translate(names, hf, &WeightName::hf, &WeightName::global);
  return result.empty() ? std::nullopt : std::optional(std::move(result.front()));
}

std::vector<std::string> parameters_in(std::span<const WeightName> names, std::string_view hf,
                                       int64_t experts) {
  if (auto name = global_name(names, hf)) return {*std::move(name)};
  std::vector<std::string> result;
  for (int64_t expert = 0; expert < experts; ++expert) {
    for (const FusedName& fused : fused_names) {
      if (const auto layer = match(fused.hf, hf)) {
        const std::string number = std::to_string(expert);
        result.push_back(fill(fused.global, {layer->front(), number}) + ".weight");
      }
    }
  }
  return result;
}

std::optional<FusedExpert> fused_expert(std::string_view global) {
  const auto name = split(global);
  if (!name) return std::nullopt;
  for (const FusedName& fused : fused_names) {
    const auto numbers = match(fused.global, name->module);
    if (!numbers) continue;
    FusedExpert result{.hf = fill(fused.hf, {numbers->front()}), .part = fused.part, .parts = fused.parts};
    const std::string_view expert = numbers->back();
    const auto read = std::from_chars(expert.data(), expert.data() + expert.size(), result.expert);
    return read.ec == std::errc() ? std::optional(std::move(result)) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace pptrain::models
