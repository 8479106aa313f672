#include "core/config/recomputation.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <map>

#include "core/base/error.h"

namespace pptrain::config {
namespace {

constexpr auto level_words =
    std::to_array<std::string_view>({"none", "cheap", "selective", "full"});  // as in the enum

Recompute level_of(std::string_view word) {
  return all_recomputes.at(static_cast<size_t>(std::ranges::find(level_words, word) - level_words.begin()));
}

// Levels of microbatches in runs, without the last ones if they only repeat the first ones.
std::string word_of(std::span<const Recompute> levels) {
  size_t period = 1;
  while (!std::ranges::equal(levels.subspan(period), levels.first(levels.size() - period))) ++period;
  levels = levels.first(period);
  if (period == 1) return std::string(to_string(levels[0]));
  std::string word;
  for (size_t begin = 0; begin < period;) {
    size_t end = begin + 1;
    while (end < period && levels[end] == levels[begin]) ++end;
    word += fmt::format("{}{}:{}", begin > 0 ? "/" : "", to_string(levels[begin]), end - begin);
    begin = end;
  }
  return word;
}

// Describes one stage: the most that it recomputes, and how many of its microbatches recompute less.
std::string describe_stage(std::span<const Recompute> levels, int64_t microbatches, int64_t slices) {
  const int64_t number = microbatches * slices;
  std::map<Recompute, int64_t, std::greater<>> counts;
  for (int64_t i = 0; i < number; ++i) ++counts[levels[static_cast<size_t>(i) % levels.size()]];
  std::string text(to_string(counts.begin()->first)), less;
  for (auto level = std::next(counts.begin()); level != counts.end(); ++level)
    less += fmt::format(
        "{}{}{} {}", less.empty() ? "" : ", ", level->second,
        less.empty() ? fmt::format(" of {} {}", number, slices > 1 ? "slices" : "microbatches") : "",
        to_string(level->first));
  return less.empty() ? text : fmt::format("{} ({})", text, less);
}

}  // namespace

std::string_view to_string(Recompute level) {
  return level_words[static_cast<size_t>(level)];
}

std::optional<std::vector<std::pair<std::string_view, int>>> parse_runs(std::string_view text) {
  constexpr size_t most_digits = 5;
  std::vector<std::pair<std::string_view, int>> runs;
  for (;;) {
    const std::string_view run = text.substr(0, text.find('/')), word = run.substr(0, run.find(':'));
    const std::string_view count = run.substr(std::min(run.size(), word.size() + 1));
    if (count.empty() || count.size() > most_digits || count.front() == '0' ||
        count.find_first_not_of("0123456789") != std::string_view::npos)
      return std::nullopt;
    runs.emplace_back(word, std::stoi(std::string(count)));
    if (run.size() == text.size()) return runs;
    text.remove_prefix(run.size() + 1);
  }
}

Recomputation::Recomputation(Recompute level) : words{std::string(to_string(level))} {}

Recomputation::Recomputation(std::span<const Recompute> stages) {
  words.clear();
  for (const Recompute level : stages) words.emplace_back(to_string(level));
  if (std::ranges::adjacent_find(words, std::ranges::not_equal_to()) == words.end()) words.resize(1);
}

Recomputation::Recomputation(std::span<const std::vector<Recompute>> stages) {
  words.clear();
  for (const std::vector<Recompute>& levels : stages) words.push_back(word_of(levels));
  if (std::ranges::adjacent_find(words, std::ranges::not_equal_to()) == words.end()) words.resize(1);
}

void Recomputation::check_words() const {
  if (words.size() > 1 && std::ranges::find(words, "auto") != words.end())
    throw UsageError("auto is for all stages: give each its own word, or one auto");
}

void Recomputation::check(int stages) const {
  check_words();
  if (words.size() == 1 || words.size() == static_cast<size_t>(stages)) return;
  throw UsageError(
      fmt::format("{} words for {} stages: give one for all, or one for each", words.size(), stages));
}

const std::string& Recomputation::word(int stage) const {
  return words.size() == 1 ? words[0] : words[static_cast<size_t>(stage)];
}

std::vector<Recompute> Recomputation::levels(int stage) const {
  const auto runs = parse_runs(word(stage));
  if (!runs) return {level_of(word(stage))};
  std::vector<Recompute> levels;
  for (const auto& [level, count] : *runs)
    levels.insert(levels.end(), static_cast<size_t>(count), level_of(level));
  return levels;
}

Recompute Recomputation::most(int stage) const {
  return std::ranges::max(levels(stage));
}

bool Recomputation::by_microbatch() const {
  return std::ranges::any_of(words, [](const std::string& word) { return parse_runs(word).has_value(); });
}

std::string Recomputation::describe(int64_t microbatches, int64_t slices) const {
  std::string text;
  for (size_t begin = 0; begin < words.size();) {
    size_t end = begin + 1;
    while (end < words.size() && words[end] == words[begin]) ++end;
    if (!text.empty()) text += ", ";
    if (end - begin > 1) text += fmt::format("{} ", end - begin);
    text += describe_stage(levels(static_cast<int>(begin)), microbatches, slices);
    begin = end;
  }
  return text;
}

}  // namespace pptrain::config
