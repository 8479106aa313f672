#include "core/config/document.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <tuple>

#include "core/base/error.h"
#include "core/config/options.h"

namespace pptrain::config {
namespace {

// Problems with a place in the file come first, by place; then those without one; then the overrides, in the
// order found.
auto rank(const Problem& problem) {
  const Origin& origin = problem.origin;
  const int group = origin.from_override ? 2 : origin.line == 0 ? 1 : 0;
  return std::tuple(group, origin.line, origin.column);
}

// An override's own text already names its option.
std::string describe(const Problem& problem) {
  const bool named = problem.name.empty() || problem.origin.where.starts_with("--set " + problem.name + "=");
  return fmt::format("{}: {}{}{}", problem.origin.where, named ? "" : problem.name, named ? "" : ": ",
                     problem.text);
}

}  // namespace

void Document::report(std::string_view option, const std::string& text) {
  const Option* known = find_option(option);
  const std::string section = known ? known->section : std::string(option.substr(0, option.rfind('.')));
  Origin origin{.where = file};
  if (const auto found = options.find(option); found != options.end()) {
    origin = found->second;
  } else if (const auto header = sections.find(section); header != sections.end()) {
    origin = header->second;
  }
  problems.push_back({origin, std::string(option), text});
}

void Document::report_conflict(std::initializer_list<std::string_view> involved, const std::string& text) {
  if (std::ranges::any_of(involved, [&](std::string_view option) { return broken.contains(option); })) return;
  const auto first = std::ranges::find_if(involved, [&](std::string_view option) { return given(option); });
  report(first == involved.end() ? *involved.begin() : *first, text);
}

void Document::throw_if_bad() const {
  if (problems.empty()) return;
  std::vector<Problem> sorted = problems;
  std::ranges::stable_sort(sorted, [](const Problem& a, const Problem& b) { return rank(a) < rank(b); });
  std::string message;
  for (const Problem& problem : sorted) {
    message += message.empty() ? "" : "\n";
    message += describe(problem);
  }
  throw UsageError(message);
}

}  // namespace pptrain::config
