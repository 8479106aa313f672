// Makes lists of passes by running each as soon as it is ready and its rank chooses it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "parallel/schedule/inputs.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// The caller chooses what a rank runs, and how long it takes.
template <typename Time>
class ListScheduler {
 public:
  // `shape`: of the lists, without actions. `latency`: from the end of a pass to the arrival of its output,
  // [Input::boundary]; none: 0.
  explicit ListScheduler(Schedule shape, std::vector<Time> latency = {})
      : lists_(std::move(shape)),
        inputs_(lists_),
        latency_(std::move(latency)),
        ends_(lists_),
        begun_(lists_),
        free_(static_cast<size_t>(lists_.ranks)) {
    latency_.resize(static_cast<size_t>(lists_.stages()));
  }

  // Is the input of the pass there, or those of both halves of a pair?
  bool is_ready(const Action& action, Time now) const {
    bool ready = true;
    for_each_part(action, [&](const Action& part) { ready = ready && arrival(part) <= now; });
    return ready;
  }

  // Calls choose(rank, now) whenever a rank that is free may have something to run, by time, then by rank. It
  // returns an action that is ready, which then takes duration(action), or nothing. Returns the lists once no
  // rank goes on.
  template <typename Choose, typename Duration>
  Schedule run(Choose&& choose, Duration&& duration) {
    for (int rank = 0; rank < lists_.ranks; ++rank) events_.emplace(Time{}, rank);
    while (!events_.empty()) {
      const auto [now, rank] = events_.top();
      events_.pop();
      if (free_[rank] > now) continue;
      const std::optional<Action> chosen = choose(rank, now);
      if (!chosen) continue;
      lists_.actions[rank].push_back(*chosen);
      free_[rank] = now + duration(*chosen);
      events_.emplace(free_[rank], rank);
      for_each_part(*chosen, [&](const Action& part) { hand_on(part, free_[rank]); });
    }
    return std::move(lists_);
  }

 private:
  // When the input is there: as late as can be until the pass that makes it has begun.
  Time arrival(const Action& pass) const {
    const std::optional<Input> input = inputs_.of(pass);
    if (!input) return {};
    if (begun_[input->pass] < inputs_.makers(input->pass)) return std::numeric_limits<Time>::max();
    return ends_[input->pass] + latency(input->boundary);
  }
  Time latency(int boundary) const { return boundary < 0 ? Time{} : latency_[boundary]; }

  void hand_on(const Action& pass, Time end) {
    if (pass.kind == ActionKind::backward_weight) return;
    ends_[pass] = std::max(ends_[pass], end);
    if (++begun_[pass] < inputs_.makers(pass)) return;
    inputs_.for_each_user(
        pass, [&](int rank, int boundary) { events_.emplace(ends_[pass] + latency(boundary), rank); });
  }

  Schedule lists_;
  Inputs inputs_;
  std::vector<Time> latency_;
  PassTable<Time> ends_;               // of the last rank that has begun the pass
  PassTable<int> begun_;               // ranks that have
  std::vector<Time> free_;             // [rank]
  using Event = std::pair<Time, int>;  // rank
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace pptrain::schedule
