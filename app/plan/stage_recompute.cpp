#include "app/plan/stage_recompute.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "core/base/error.h"

namespace pptrain::app {

std::vector<std::string> resolved_recompute(std::vector<std::string> words, config::Device device) {
  if (words == std::vector<std::string>{"auto"}) words = {device == config::Device::cpu ? "none" : "cheap"};
  return words;
}

void check_recompute_words(std::span<const std::string> words) {
  if (words.size() > 1 && std::ranges::find(words, "auto") != words.end())
    throw UsageError("auto is for all stages: give each its own word, or one auto");
}

void check_recompute(std::span<const std::string> words, int stages) {
  check_recompute_words(words);
  if (words.size() == 1 || words.size() == static_cast<size_t>(stages)) return;
  throw UsageError(
      fmt::format("{} words for {} stages: give one for all, or one for each", words.size(), stages));
}

models::Recompute stage_recompute(std::span<const std::string> words, int stage) {
  return models::make_recompute(words.size() == 1 ? words[0] : words[static_cast<size_t>(stage)]);
}

std::vector<models::Recompute> recompute_of_stages(std::span<const std::string> words) {
  std::vector<models::Recompute> stages;
  for (size_t stage = 0; words.size() > 1 && stage < words.size(); ++stage)
    stages.push_back(models::make_recompute(words[stage]));
  return stages;
}

std::vector<std::string> recompute_words(std::span<const models::Recompute> stages) {
  std::vector<std::string> words;
  for (const models::Recompute recompute : stages) words.emplace_back(models::to_string(recompute));
  if (std::ranges::adjacent_find(words, std::ranges::not_equal_to()) == words.end()) words.resize(1);
  return words;
}

std::string describe_recompute(std::span<const std::string> words) {
  std::string text;
  for (size_t begin = 0; begin < words.size();) {
    size_t end = begin + 1;
    while (end < words.size() && words[end] == words[begin]) ++end;
    if (!text.empty()) text += ", ";
    text += end - begin > 1 ? fmt::format("{} {}", end - begin, words[begin]) : words[begin];
    begin = end;
  }
  return text;
}

}  // namespace pptrain::app
