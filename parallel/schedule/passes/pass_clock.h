// Which ranks may go on, and when: for makers of lists that run passes as soon as they are ready.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// The caller chooses what a rank runs, and for how long; the clock hands the output on.
template <typename Time>
class PassClock {
 public:
  static constexpr Time never = std::numeric_limits<Time>::max();

  // `shape`: its sizes, placement and spread_head; it must outlive the clock. `latency`: from the end of a
  // pass to the arrival of its output at the neighbouring stage, [boundary]; none: 0.
  explicit PassClock(const Schedule& shape, std::vector<Time> latency = {})
      : s_(shape),
        table_(shape),
        latency_(std::move(latency)),
        forward_(shape.cells(), never),
        gradient_(shape.cells(), never),
        free_(static_cast<size_t>(shape.ranks)) {
    latency_.resize(static_cast<size_t>(shape.stages()));
    std::fill_n(forward_.begin(), shape.microbatches, Time{});
  }

  // Calls go_on(rank, now) whenever a rank that is free may have something to run, by time, then by rank.
  template <typename GoOn>
  void run(GoOn&& go_on) {
    for (int rank = 0; rank < s_.ranks; ++rank) wake(rank, Time{});
    while (!events_.empty()) {
      const auto [now, rank] = events_.top();
      events_.pop();
      if (free_[rank] <= now) go_on(rank, now);
    }
  }

  // When the input of an F, B or I is there: `never` until the pass that makes it has begun. Others need
  // none.
  Time input(const Action& pass) const {
    if (pass.kind == ActionKind::forward) return forward_[cell(pass)];
    return is_gradient(pass.kind) ? gradient_[cell(pass)] : Time{};
  }

  // The rank runs an action, not a pair, until `end`. What the last stage's F makes goes to its B or I; not
  // if the head is spread.
  void begin(int rank, const Action& action, Time end) {
    free_[rank] = end;
    wake(rank, end);
    const int stage = action.stage;
    if (action.kind == ActionKind::forward) {
      if (stage + 1 < s_.stages())
        return arrive(forward(stage + 1, action.microbatch), end + latency_[stage]);
      if (!s_.spread_head) arrive(backward(stage, action.microbatch), end);
    } else if (is_gradient(action.kind) && stage > 0) {
      arrive(backward(stage - 1, action.microbatch), end + latency_[stage - 1]);
    }
  }

  // The input of an F, B or I will be there.
  void arrive(const Action& pass, Time time) {
    (pass.kind == ActionKind::forward ? forward_ : gradient_)[cell(pass)] = time;
    wake(table_.rank_of[pass.stage], time);
  }

  // Lets run() return now.
  void stop() { events_ = {}; }

  void wake(int rank, Time time) { events_.emplace(time, rank); }

 private:
  size_t cell(const Action& action) const { return s_.cell(action.stage, action.microbatch); }

  const Schedule& s_;
  PlacementTable table_;
  std::vector<Time> latency_;             // [boundary]
  std::vector<Time> forward_, gradient_;  // [stage x microbatch] when the input of F, of B or I is there
  std::vector<Time> free_;                // [rank]
  using Event = std::pair<Time, int>;     // rank
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace pptrain::schedule
