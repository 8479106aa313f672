// Comparisons with a tolerance. `relative_error(y, expected) < 1e-6` compares a Difference, which knows the
// place of its measurement. With PPTRAIN_MARGINS=FILE the program appends one line for each place to FILE
// when it ends. From these lines scripts/tolerances.sh prints the margin of each bound. See
// scripts/tolerances.py for the format.
#pragma once

#include <concepts>
#include <iosfwd>
#include <source_location>

namespace pptrain::test {

using CallSite = std::source_location;

// A measured difference, to be compared with its bound; NaN is within no bound.
class Difference {
 public:
  explicit Difference(double value, CallSite place = CallSite::current()) : value_(value), place_(place) {}
  double value() const { return value_; }
  const CallSite& place() const { return place_; }

 private:
  double value_;
  CallSite place_;
};

std::ostream& operator<<(std::ostream& out, const Difference& difference);

// Keeps the largest difference / bound of each place, for PPTRAIN_MARGINS. Any thread may call it.
void record_bound(const Difference& difference, double bound);

template <typename Bound>
requires std::convertible_to<Bound, double>
bool operator<(const Difference& difference, const Bound& bound) {
  record_bound(difference, static_cast<double>(bound));
  return difference.value() < static_cast<double>(bound);
}
template <typename Bound>
requires std::convertible_to<Bound, double>
bool operator<=(const Difference& difference, const Bound& bound) {
  record_bound(difference, static_cast<double>(bound));
  return difference.value() <= static_cast<double>(bound);
}

// |actual - expected| / |expected|
inline Difference relative_error(double actual, double expected, CallSite place = CallSite::current()) {
  const double distance = actual < expected ? expected - actual : actual - expected;
  return Difference(expected == 0 ? distance : distance / (expected < 0 ? -expected : expected), place);
}

}  // namespace pptrain::test
