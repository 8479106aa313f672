#include "app/commands/argument_hint.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "core/config/aliases.h"
#include "core/config/options.h"

namespace pptrain::app {

namespace {

// Of "train.steps", "steps" or "learning_rate" the option that is meant; empty if it is none.
std::string option_of(const std::string& name) {
  if (config::find_option(name)) return name;
  const size_t dot = name.rfind('.');
  const std::string section = dot == std::string::npos ? "" : name.substr(0, dot);
  const std::string key = dot == std::string::npos ? name : name.substr(dot + 1);
  if (const std::string alias = config::alias_of_key(section, key); !alias.empty()) return alias;
  const auto same = std::ranges::find(config::options(), key, &config::Option::key);
  if (same != config::options().end()) return same->name();
  return std::ranges::find(config::sections(), section) != config::sections().end() ? name : "";
}

// "--train.steps=5", "--train.steps 5", or "train.steps=5" where no --set is before it.
std::optional<std::string> hint_of_key(std::span<const std::string> arguments, size_t i) {
  std::string name = arguments[i];
  const bool dashes = name.starts_with("--");
  if (dashes) name.erase(0, 2);
  const size_t equals = name.find('=');
  if (!dashes && (equals == std::string::npos || (i > 0 && arguments[i - 1] == "--set"))) return std::nullopt;
  std::string value = equals == std::string::npos ? "VALUE" : name.substr(equals + 1);
  if (equals == std::string::npos && i + 1 < arguments.size() && !arguments[i + 1].starts_with("-"))
    value = arguments[i + 1];
  const std::string option = option_of(name.substr(0, equals));
  if (option.empty()) return std::nullopt;
  return fmt::format("a key of the job is set so: --set {}={}", option, value);
}

}  // namespace

std::string argument_hint(std::span<const std::string> arguments, std::string_view refusal) {
  const bool unknown = refusal.find("not expected") != std::string_view::npos;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const bool follows = i > 0 && arguments[i - 1].starts_with("-");
    if (argument.ends_with(".toml") && !argument.starts_with("-") && !follows)
      return fmt::format("a job is named so: --config {}", argument);
    if (!unknown || refusal.find(argument) == std::string_view::npos) continue;
    if (i == 0 && (argument == "train" || argument == "run" || argument == "resume"))
      return "training has no subcommand: pptrain --config job.toml trains, and resumes";
    if (const auto hint = hint_of_key(arguments, i)) return *hint;
  }
  return "";
}

}  // namespace pptrain::app
