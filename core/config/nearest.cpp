#include "core/config/nearest.h"

#include <algorithm>
#include <limits>
#include <ranges>
#include <vector>

namespace pptrain::config {

std::string to_lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

bool has_word(std::string_view words, std::string_view word) {
  return std::ranges::any_of(std::views::split(words, ' '),
                             [&](const auto& one) { return std::ranges::equal(one, word); });
}

size_t edit_distance(std::string_view a, std::string_view b) {
  const std::string x = to_lower(a.substr(0, 64));
  const std::string y = to_lower(b.substr(0, 64));
  std::vector<std::vector<size_t>> d(x.size() + 1, std::vector<size_t>(y.size() + 1));
  for (size_t i = 0; i <= x.size(); ++i) {
    for (size_t j = 0; j <= y.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      const size_t replaced = d[i - 1][j - 1] + (x[i - 1] == y[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && x[i - 1] == y[j - 2] && x[i - 2] == y[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[x.size()][y.size()];
}

std::string nearest(std::string_view word, std::span<const std::string> names) {
  constexpr size_t shortest_beginning = 4;  // letters that say enough
  std::string best;
  size_t best_distance = std::numeric_limits<size_t>::max();
  for (const std::string& name : names) {
    const size_t distance = edit_distance(word, name);
    const size_t near = std::max<size_t>(1, std::max(word.size(), name.size()) / 3);
    if (distance <= near && distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  if (!best.empty() || word.size() < shortest_beginning) return best;
  const auto longer = std::ranges::find_if(
      names, [&](const std::string& name) { return name.starts_with(to_lower(word) + "_"); });
  return longer == names.end() ? best : *longer;
}

std::string did_you_mean(std::string_view guess) {
  return guess.empty() ? "" : "; did you mean " + std::string(guess) + "?";
}

}  // namespace pptrain::config
