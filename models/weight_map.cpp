#include "models/weight_map.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "core/base/error.h"

namespace pptrain::models {
namespace {

// The number that stands at the pattern's '*', empty where the pattern has none; nothing if `name` is not
// the pattern's.
std::optional<std::string_view> match(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos)
    return name == pattern ? std::optional(std::string_view()) : std::nullopt;
  const std::string_view before = pattern.substr(0, star), after = pattern.substr(star + 1);
  if (!name.starts_with(before)) return std::nullopt;
  const std::string_view rest = name.substr(before.size());
  const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (digits == 0 || rest.substr(digits) != after) return std::nullopt;
  return rest.substr(0, digits);
}

std::string fill(std::string_view pattern, std::string_view number) {
  std::string result(pattern);
  if (const size_t star = result.find('*'); star != std::string::npos) result.replace(star, 1, number);
  return result;
}

// Translates `<module>.<weight|bias>`.
std::optional<std::string> translate(std::span<const WeightName> names, std::string_view name,
                                     std::string_view WeightName::*from, std::string_view WeightName::*to) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view kind = name.substr(dot + 1);
  if (kind != "weight" && kind != "bias") return std::nullopt;
  for (const WeightName& module : names) {
    if (const auto number = match(module.*from, name.substr(0, dot))) {
      return fmt::format("{}.{}", fill(module.*to, *number), kind);
    }
  }
  return std::nullopt;
}

}  // namespace

std::string hf_name(std::span<const WeightName> names, std::string_view global, bool tied) {
  if (tied && global == "head.weight") global = "embed.weight";
  auto name = translate(names, global, &WeightName::global, &WeightName::hf);
  if (!name) throw Error(fmt::format("no Hugging Face name is known for the parameter {}", global));
  return *std::move(name);
}

std::optional<std::string> global_name(std::span<const WeightName> names, std::string_view hf) {
  return translate(names, hf, &WeightName::hf, &WeightName::global);
}

}  // namespace pptrain::models
