#include "core/fault/divergence.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace pptrain::fault {

namespace {

// Of one value at least; of an even number the mean of the two in the middle.
double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

}  // namespace

LossBand loss_band(std::span<const double> losses, double width) {
  constexpr double of_normal_noise = 1.4826;  // standard deviation over median absolute deviation
  constexpr double least = 1e-3;
  LossBand band{.median = median_of({losses.begin(), losses.end()})};
  std::vector<double> distances;
  for (const double loss : losses) distances.push_back(std::abs(loss - band.median));
  band.deviation = std::max(of_normal_noise * median_of(std::move(distances)), least * std::abs(band.median));
  band.limit = band.median + width * band.deviation;
  return band;
}

void DivergenceWatch::take(int64_t step, double loss) {
  if (options_.steps == 0 || !std::isfinite(loss)) return;
  last_ = loss;
  const bool full = static_cast<int64_t>(state_.recent.size()) >= options_.window;
  if (full && loss > loss_band(state_.recent, options_.width).limit) {
    if (state_.above++ == 0) state_.since = step;
    return;
  }
  if (full) state_.recent.erase(state_.recent.begin());
  state_.recent.push_back(loss);
  state_.above = state_.since = 0;
}

std::string DivergenceWatch::describe() const {
  const LossBand band = loss_band(state_.recent, options_.width);
  return fmt::format(
      "the loss lies above its band since step {}: {:.4f} now, the band ends at {:.4f} (median {:.4f} of the "
      "{} losses before, {:g} deviations of {:.4f})",
      state_.since, last_, band.limit, band.median, state_.recent.size(), options_.width, band.deviation);
}

void DivergenceWatch::restore(State state) {
  if (options_.steps == 0) return;
  state_ = std::move(state);
  const auto surplus = static_cast<int64_t>(state_.recent.size()) - options_.window;
  if (surplus > 0) state_.recent.erase(state_.recent.begin(), state_.recent.begin() + surplus);
  if (state_.recent.empty() || diverged()) state_.above = state_.since = 0;
}

}  // namespace pptrain::fault
