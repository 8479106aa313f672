// Where a rank's idle time belongs; one definition for what is simulated and for what is measured.
#pragma once

#include <algorithm>
#include <limits>

#include "parallel/schedule/action.h"
#include "parallel/schedule/cost/simulate.h"

namespace pptrain::schedule {

// See RankTime. First show it all of the rank's actions, then add the idle times.
class IdleSplit {
 public:
  explicit IdleSplit(bool forward_only) : forward_only_(forward_only) {}

  // `action`: not a pair, but each half of it.
  void see(const Action& action, const Span& span) {
    last_end_ = std::max(last_end_, span.end);
    if (action.kind == ActionKind::forward) last_forward_ = std::max(last_forward_, span.end);
    if (action.kind == ActionKind::forward ? forward_only_ : is_gradient(action.kind)) {
      fill_end_ = std::min(fill_end_, span.start);
    }
  }

  void add(double from, double to, RankTime& time) const {
    const double fill_end = std::min(fill_end_, last_end_);
    const double drain_start = std::clamp(last_forward_, fill_end, last_end_);
    const auto part = [&](double low, double high) {
      return std::max(0.0, std::min(to, high) - std::max(from, low));
    };
    time.fill += part(from, fill_end);
    time.steady += part(fill_end, drain_start);
    time.drain += part(drain_start, last_end_);
    time.barrier += part(last_end_, to);
  }

 private:
  static constexpr double never = std::numeric_limits<double>::infinity();
  bool forward_only_;
  double fill_end_ = never;
  double last_forward_ = -never;
  double last_end_ = -never;
};

}  // namespace pptrain::schedule
