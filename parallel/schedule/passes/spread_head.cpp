// The pass that places the parts of a head that is spread over the ranks.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "parallel/schedule/passes/list_scheduler.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::schedule {
namespace {

// Most that a rank runs ahead: as many as there are exchanges between an F and its B of the last stage.
constexpr int most_ahead = 2;
constexpr size_t looked_at = 64;  // actions of a list in which a rank looks for a forward

// As ListScheduler takes them.
std::vector<double> latencies(const Schedule& schedule, const Costs& costs) {
  std::vector<double> latency;
  for (int boundary = 0; boundary + 1 < schedule.stages(); ++boundary)
    latency.push_back(one_for(costs.latency, boundary));
  latency.push_back(costs.head_latency);
  return latency;
}

Schedule shape_of(const Schedule& whole) {
  Schedule shape = whole.without_actions();
  shape.spread_head = true;
  return shape;
}

// Runs the lists at the costs, each rank always doing what it can begin first.
class Spreading {
 public:
  // ahead: microbatches that a rank may run ahead.
  Spreading(const Schedule& schedule, const Costs& costs, int ahead)
      : s_(schedule),
        costs_(costs),
        forwards_ahead_(ahead * schedule.stages_per_rank),
        scheduler_(shape_of(schedule), latencies(schedule, costs)) {
    for (const auto& list : s_.actions) ranks_.push_back({.taken = std::vector<bool>(list.size())});
  }

  Schedule run() {
    Schedule spread = scheduler_.run([this](int rank, double now) { return choose(rank, now); },
                                     [this](const Action& action) { return time(action); });
    for (int rank = 0; rank < s_.ranks; ++rank) {
      const size_t all = s_.actions[rank].size() + 2 * static_cast<size_t>(s_.microbatches);
      if (spread.actions[rank].size() != all)
        throw Error("spread_head: the schedule " + s_.name + " deadlocks");
    }
    return spread;
  }

 private:
  struct Rank {
    std::vector<bool> taken;     // [place in its list]
    size_t position = 0;         // nothing before it is left
    int ahead = 0;               // forwards that are done, behind `position`
    int head_f = 0, head_b = 0;  // microbatches whose S, and T, is done
  };

  double time(const Action& action) const {
    const StageCost cost = one_for(costs_.stages, action.stage);
    if (action.kind == ActionKind::overlapped_pair)
      return pair_duration(cost, one_for(costs_.stages, action.backward_stage), action.backward_kind);
    return cost.time.of(action.kind);
  }

  // T before S before the list; if all of these wait, a forward that comes later.
  std::optional<Action> choose(int rank, double now) {
    Rank& own = ranks_[static_cast<size_t>(rank)];
    const auto& list = s_.actions[rank];
    if (own.head_b < own.head_f && scheduler_.is_ready(head_backward(rank, own.head_b), now))
      return head_backward(rank, own.head_b++);
    if (own.head_f < s_.microbatches && scheduler_.is_ready(head_forward(rank, own.head_f), now))
      return head_forward(rank, own.head_f++);
    for (; own.position < list.size() && own.taken[own.position]; ++own.position) --own.ahead;
    if (own.position == list.size()) return std::nullopt;
    if (scheduler_.is_ready(list[own.position], now)) return list[own.position++];
    const size_t place = own.ahead < forwards_ahead_ ? later_forward(own, list, now) : list.size();
    if (place == list.size()) return std::nullopt;
    own.taken[place] = true;
    ++own.ahead;
    return list[place];
  }

  // Looks at the first forward of each stage that is left: one that is ready; the list's size if none is.
  size_t later_forward(const Rank& own, const std::vector<Action>& list, double now) const {
    std::vector<int> seen;  // stages
    const size_t end = std::min(list.size(), own.position + looked_at);
    for (size_t i = own.position; i < end && std::ssize(seen) < s_.stages_per_rank; ++i) {
      if (own.taken[i]) continue;
      const Action& action = list[i];
      const bool forward = action.kind == ActionKind::forward;
      if (!forward && action.kind != ActionKind::overlapped_pair) continue;
      if (std::ranges::find(seen, action.stage) != seen.end()) continue;
      seen.push_back(action.stage);
      if (forward && scheduler_.is_ready(action, now)) return i;
    }
    return list.size();
  }

  const Schedule& s_;
  const Costs& costs_;
  int forwards_ahead_;
  ListScheduler<double> scheduler_;
  std::vector<Rank> ranks_;
};

// The costs with which orders are tried: the given ones; F, I and W of a stage equally long; and F, I and W
// of all stages equally long, without transfers, as the generators have it.
std::vector<Costs> orderings(const Costs& costs) {
  if (costs.stages.empty()) return {costs};
  Costs thirds = costs, even;
  double sum = 0;
  const auto set = [](PerPass<double>& time, double third) {
    time.forward = time.backward_input = time.backward_weight = third;
    time.backward = 2 * third;
  };
  for (StageCost& stage : thirds.stages) {
    const double third = (stage.time.forward + stage.time.backward) / 3;
    set(stage.time, third);
    sum += third;
  }
  even.stages = thirds.stages;
  for (StageCost& stage : even.stages) set(stage.time, sum / static_cast<double>(even.stages.size()));
  return {costs, thirds, even};
}

}  // namespace

// A rank that always does what it can begin first may harm others: takes the run with the shortest step of a
// few runs.
Schedule spread_head(const Schedule& schedule, const Costs& costs) {
  if (schedule.spread_head || schedule.has_communication())
    throw Error("spread_head: the schedule has communication, or its head is spread already");
  std::optional<Schedule> best;
  double shortest = std::numeric_limits<double>::max();
  for (const Costs& ordering : orderings(costs)) {
    for (int ahead = 0; ahead <= most_ahead; ++ahead) {
      Schedule spread = Spreading(schedule, ordering, ahead).run();
      const double time = simulate(spread, costs).step_time;
      if (time >= shortest) continue;
      shortest = time;
      best = std::move(spread);
    }
  }
  return *std::move(best);
}

}  // namespace pptrain::schedule
