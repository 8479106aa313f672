#include "app/report/thinning.h"

#include <algorithm>
#include <cmath>

namespace pptrain::app {

std::vector<size_t> thinned(std::span<const double> values, size_t most) {
  std::vector<size_t> finite;
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) finite.push_back(i);
  }
  if (finite.size() <= most) return finite;
  const size_t groups = (most - 2) / 2;
  std::vector<size_t> kept = {finite.front(), finite.back()};
  for (size_t group = 0; group < groups; ++group) {
    const auto begin = finite.begin() + static_cast<std::ptrdiff_t>(group * finite.size() / groups);
    const auto end = finite.begin() + static_cast<std::ptrdiff_t>((group + 1) * finite.size() / groups);
    const auto [low, high] =
        std::minmax_element(begin, end, [&](size_t a, size_t b) { return values[a] < values[b]; });
    kept.push_back(*low);
    kept.push_back(*high);
  }
  std::ranges::sort(kept);
  kept.erase(std::ranges::unique(kept).begin(), kept.end());
  return kept;
}

}  // namespace pptrain::app
