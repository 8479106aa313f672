#include "core/optim/groups.h"

#include <fnmatch.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace pptrain::optim {
namespace {

constexpr std::array<std::pair<std::string_view, nn::Role>, 6> roles = {{{"matrix", nn::Role::matrix},
                                                                         {"embedding", nn::Role::embedding},
                                                                         {"head", nn::Role::head},
                                                                         {"norm", nn::Role::norm},
                                                                         {"bias", nn::Role::bias},
                                                                         {"router", nn::Role::router}}};

bool matches(const std::string& match, const nn::ParameterSpec& spec) {
  if (spec.role == nn::Role::balance) return false;
  const bool tied = !spec.init_name.empty();
  const auto* const role = std::ranges::find(roles, match, &std::pair<std::string_view, nn::Role>::first);
  if (role != roles.end()) return role->second == (tied ? nn::Role::embedding : spec.role);
  return fnmatch(match.c_str(), (tied ? spec.init_name : spec.name).c_str(), 0) == 0;
}

}  // namespace

const config::OptimizerGroup* find_group(std::span<const config::OptimizerGroup> groups,
                                         const nn::ParameterSpec& spec) {
  const auto found = std::ranges::find_if(
      groups, [&](const config::OptimizerGroup& group) { return matches(group.match, spec); });
  return found == groups.end() ? nullptr : &*found;
}

std::map<size_t, std::string> check_groups(std::span<const config::OptimizerGroup> groups,
                                           std::span<const nn::ParameterSpec* const> specs) {
  std::map<size_t, std::string> problems;
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::string& match = groups[i].match;
    const nn::ParameterSpec* matched = nullptr;
    bool acts = false;
    for (const nn::ParameterSpec* spec : specs) {
      if (!matches(match, *spec)) continue;
      if (matched == nullptr) matched = spec;
      acts = acts || (find_group(groups, *spec) == &groups[i] && (groups[i].frozen || !spec->frozen));
    }
    if (acts) continue;
    problems[i] =
        matched == nullptr
            ? fmt::format(
                  "\"{}\" matches no parameter of the model (the first is called {}). Give a pattern "
                  "such as \"*.q.weight\", or matrix, embedding, head, norm, bias or router",
                  match, specs.empty() ? "nothing" : specs.front()->name)
            : fmt::format("all that \"{}\" matches, such as {}, is {}", match, matched->name,
                          matched->frozen && find_group(groups, *matched) == &groups[i]
                              ? "frozen: with lora.rank adapters alone learn (\"*.lora_a.weight\", "
                                "\"*.lora_b.weight\")"
                              : "in an earlier group: the first that matches counts");
  }
  return problems;
}

}  // namespace pptrain::optim
