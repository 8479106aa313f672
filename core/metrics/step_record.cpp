#include "core/metrics/step_record.h"

#include <algorithm>

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

}  // namespace pptrain::metrics
