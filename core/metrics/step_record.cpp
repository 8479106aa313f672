#include "core/metrics/step_record.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace pptrain::metrics {

double ExpertLoad::imbalance() const {
  int64_t sum = 0, largest = 0;
  for (const int64_t count : rows) {
    sum += count;
    largest = std::max(largest, count);
  }
  return sum == 0
             ? 1
             : static_cast<double>(largest) * static_cast<double>(rows.size()) / static_cast<double>(sum);
}

double SourceLoss::loss() const {
  return sum / static_cast<double>(std::max<int64_t>(tokens, 1));
}

double SourceLoss::perplexity() const {
  return std::exp(loss());
}

std::optional<double> SourceLoss::bits_per_byte() const {
  if (!bytes) return std::nullopt;
  return sum / std::numbers::ln2 / static_cast<double>(std::max<int64_t>(*bytes, 1));
}

}  // namespace pptrain::metrics
