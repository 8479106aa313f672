#include "core/metrics/time_left.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace pptrain::metrics {

void TimeLeft::step(double seconds) {
  ++steps_;
  latest_.push_back(seconds);
  if (latest_.size() > kept) latest_.pop_front();
}

std::optional<double> TimeLeft::estimate(int64_t steps) const {
  if (latest_.size() < first_steps || steps < 0) return std::nullopt;
  std::vector<double> times(latest_.begin(), latest_.end());
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::ranges::nth_element(times, middle);
  const double left = static_cast<double>(steps) * (*middle + paused_ / static_cast<double>(steps_));
  if (!std::isfinite(left) || left < 0) return std::nullopt;
  return left;
}

}  // namespace pptrain::metrics
