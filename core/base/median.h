// The middle of numbers, which single outliers do not move.
#pragma once

#include <algorithm>
#include <vector>

namespace pptrain {

// Of at least one value; if their number is even, the upper of the two in the middle.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace pptrain
