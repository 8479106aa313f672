// The pass that places the parts of a head that is spread over the ranks.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::schedule {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();
// Most that a rank runs ahead: as many as there are exchanges between an F and its B of the last stage.
constexpr int most_ahead = 2;
constexpr size_t not_listed = std::numeric_limits<size_t>::max();
constexpr size_t looked_at = 64;  // actions of a list in which a rank looks for a forward

// What a rank can do next.
struct Next {
  double start = never;
  int priority = 0;  // of equal starts the highest
  Action action;
  size_t place = not_listed;  // in the rank's list

  bool operator<(const Next& other) const {
    return start != other.start ? start < other.start : priority > other.priority;
  }
};

// Runs the lists at the costs, each rank always doing what it can begin first.
class Spreading {
 public:
  // ahead: microbatches that a rank may run ahead.
  Spreading(const Schedule& schedule, const Costs& costs, int ahead)
      : s_(schedule),
        costs_(costs),
        forwards_ahead_(ahead * schedule.stages_per_rank),
        table_(schedule),
        result_(schedule.without_actions()),
        end_f_(schedule.cells(), never),
        end_b_(schedule.cells(), never),
        ranks_(static_cast<size_t>(schedule.ranks)),
        head_f_(static_cast<size_t>(schedule.microbatches)),
        head_b_(head_f_) {
    result_.spread_head = true;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) ranks_[rank].taken.resize(s_.actions[rank].size());
  }

  Schedule run() {
    size_t left = 2 * ranks_.size() * static_cast<size_t>(s_.microbatches);
    for (const auto& list : s_.actions) left += list.size();
    for (; left > 0; --left) {
      size_t first = 0;
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        if (std::exchange(ranks_[rank].stale, false)) ranks_[rank].next = choose(static_cast<int>(rank));
        if (ranks_[rank].next < ranks_[first].next) first = rank;
      }
      if (ranks_[first].next.start == never)
        throw Error("spread_head: the schedule " + s_.name + " deadlocks");
      take(static_cast<int>(first));
    }
    return std::move(result_);
  }

 private:
  struct Rank {
    std::vector<bool> taken;  // [place in its list]
    size_t position = 0;      // nothing before it is left
    double free = 0;
    int ahead = 0;               // forwards that are done, behind `position`
    int head_f = 0, head_b = 0;  // microbatches whose S, and T, is done
    bool stale = true;           // `next` is to be found anew
    Next next;
  };
  struct Part {  // of the head, of a microbatch
    int ranks = 0;
    double end = 0;  // of the last one so far
  };

  bool is_whole(const Part& part) const { return part.ranks == s_.ranks; }

  double latency(int boundary) const {
    if (!table_.crosses[boundary] || costs_.latency.empty()) return 0;
    return costs_.latency[costs_.latency.size() == 1 ? 0 : static_cast<size_t>(boundary)];
  }
  double time(const Action& action) const {
    if (action.kind == ActionKind::overlapped_pair)
      return pair_duration(cost(action.stage), cost(action.backward_stage), action.backward_kind);
    return duration(cost(action.stage), action.kind);
  }
  StageCost cost(int stage) const {
    if (costs_.stages.empty()) return {};
    return costs_.stages[costs_.stages.size() == 1 ? 0 : static_cast<size_t>(stage)];
  }

  // When what the action needs is there.
  double ready(const Action& action) const {
    double at = 0;
    for_each_part(action, [&](const Action& part) { at = std::max(at, ready_part(part)); });
    return at;
  }
  double ready_part(const Action& action) const {
    const int stage = action.stage, mb = action.microbatch;
    if (action.kind == ActionKind::forward)
      return stage == 0 ? 0 : end_f_[s_.cell(stage - 1, mb)] + latency(stage - 1);
    if (!is_gradient(action.kind)) return 0;
    if (end_f_[s_.cell(stage, mb)] == never) return never;
    if (stage + 1 < s_.stages()) return end_b_[s_.cell(stage + 1, mb)] + latency(stage);
    const Part& head = head_b_[static_cast<size_t>(mb)];
    return is_whole(head) ? head.end + costs_.head_latency : never;
  }

  Next choose(int rank) {
    Rank& own = ranks_[static_cast<size_t>(rank)];
    const auto& list = s_.actions[rank];
    Next best;
    const auto consider = [&](double at, int priority, const Action& action, size_t place) {
      best = std::min(best, Next{std::max(own.free, at), priority, action, place});
    };
    if (own.head_b < own.head_f) {
      const Part& part = head_f_[static_cast<size_t>(own.head_b)];
      if (is_whole(part)) consider(part.end, 3, head_backward(rank, own.head_b), not_listed);
    }
    const int last = s_.stages() - 1;
    if (own.head_f < s_.microbatches) {
      const double made = end_f_[s_.cell(last, own.head_f)];
      const double arrives = made + (rank == table_.rank_of[last] ? 0 : costs_.head_latency);
      consider(arrives, 2, head_forward(rank, own.head_f), not_listed);
    }
    for (; own.position < list.size() && own.taken[own.position]; ++own.position) --own.ahead;
    if (own.position == list.size()) return best;
    consider(ready(list[own.position]), 1, list[own.position], own.position);
    if (best.start > own.free && own.ahead < forwards_ahead_)
      look_ahead(rank, [&](size_t place) { consider(ready(list[place]), 0, list[place], place); });
    return best;
  }

  // The first forward of each stage that is left.
  template <typename Visit>
  void look_ahead(int rank, const Visit& visit) const {
    const Rank& own = ranks_[static_cast<size_t>(rank)];
    const auto& list = s_.actions[rank];
    std::vector<int> seen;  // stages
    const size_t end = std::min(list.size(), own.position + looked_at);
    for (size_t i = own.position; i < end && std::ssize(seen) < s_.stages_per_rank; ++i) {
      if (own.taken[i]) continue;
      const Action& action = list[i];
      const bool forward = action.kind == ActionKind::forward;
      if (!forward && action.kind != ActionKind::overlapped_pair) continue;
      if (std::ranges::find(seen, action.stage) != seen.end()) continue;
      seen.push_back(action.stage);
      if (forward) visit(i);
    }
  }

  void take(int rank) {
    Rank& own = ranks_[static_cast<size_t>(rank)];
    const Next next = own.next;
    own.free = next.start + time(next.action);
    own.stale = true;
    if (next.place == own.position) {
      ++own.position;
    } else if (next.place < own.taken.size()) {
      own.taken[next.place] = true;
      ++own.ahead;
    }
    result_.actions[rank].push_back(next.action);
    for_each_part(next.action, [&](const Action& part) { note(own, part); });
  }

  void note(Rank& own, const Action& part) {
    const int stage = part.stage;
    const size_t cell = s_.cell(stage, part.microbatch);
    switch (part.kind) {
      case ActionKind::forward:
        end_f_[cell] = own.free;
        return stage + 1 == s_.stages() ? wake_all() : wake(stage + 1);
      case ActionKind::backward:
      case ActionKind::backward_input:
        end_b_[cell] = own.free;
        return stage == 0 ? void() : wake(stage - 1);
      case ActionKind::head_forward:
        ++own.head_f;
        return add(head_f_[static_cast<size_t>(part.microbatch)], own.free);
      case ActionKind::head_backward:
        ++own.head_b;
        return add(head_b_[static_cast<size_t>(part.microbatch)], own.free);
      default:
        return;
    }
  }

  void add(Part& part, double end) {
    ++part.ranks;
    part.end = std::max(part.end, end);
    if (is_whole(part)) wake_all();
  }
  void wake(int stage) { ranks_[static_cast<size_t>(table_.rank_of[stage])].stale = true; }
  void wake_all() {
    for (Rank& rank : ranks_) rank.stale = true;
  }

  const Schedule& s_;
  const Costs& costs_;
  int forwards_ahead_;
  PlacementTable table_;
  Schedule result_;
  std::vector<double> end_f_, end_b_;  // [stage x microbatch]
  std::vector<Rank> ranks_;
  std::vector<Part> head_f_, head_b_;  // [microbatch]
};

// The costs by which orders are tried: those given; with F, I and W of a stage as long as each other; and so
// of all stages, with nothing on its way, as the generators have it.
std::vector<Costs> orderings(const Costs& costs) {
  if (costs.stages.empty()) return {costs};
  Costs thirds = costs, even;
  double sum = 0;
  for (StageCost& stage : thirds.stages) {
    const double third = (stage.forward + duration(stage, ActionKind::backward)) / 3;
    stage.forward = stage.backward_input = stage.backward_weight = third;
    stage.backward = 2 * third;
    sum += third;
  }
  even.stages = thirds.stages;
  for (StageCost& stage : even.stages) {
    stage.forward = stage.backward_input = stage.backward_weight =
        sum / static_cast<double>(even.stages.size());
    stage.backward = 2 * stage.forward;
  }
  return {costs, thirds, even};
}

}  // namespace

// A rank that always does what it can begin first may harm others: of a few runs the one with the shortest
// step.
Schedule spread_head(const Schedule& schedule, const Costs& costs) {
  if (schedule.spread_head || schedule.has_communication())
    throw Error("spread_head: the schedule has communication, or its head is spread already");
  std::optional<Schedule> best;
  double shortest = never;
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
