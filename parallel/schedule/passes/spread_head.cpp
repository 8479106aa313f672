// The pass that places the parts of a head that is spread over the ranks.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "parallel/schedule/passes/pass_clock.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::schedule {
namespace {

// Most that a rank runs ahead: as many as there are exchanges between an F and its B of the last stage.
constexpr int most_ahead = 2;
constexpr size_t looked_at = 64;  // actions of a list in which a rank looks for a forward

std::vector<double> latencies(const Schedule& schedule, const Costs& costs) {
  std::vector<double> latency;
  for (int boundary = 0; boundary + 1 < schedule.stages(); ++boundary)
    latency.push_back(schedule.crosses_ranks(boundary) ? one_for(costs.latency, boundary) : 0);
  return latency;
}

// Runs the lists at the costs, each rank always doing what it can begin first.
class Spreading {
 public:
  // ahead: microbatches that a rank may run ahead.
  Spreading(const Schedule& schedule, const Costs& costs, int ahead)
      : s_(schedule),
        costs_(costs),
        forwards_ahead_(ahead * schedule.stages_per_rank),
        result_(schedule.without_actions()),
        clock_(result_, latencies(schedule, costs)),
        ranks_(static_cast<size_t>(schedule.ranks)),
        head_input_(static_cast<size_t>(schedule.microbatches), Clock::never),
        head_f_(static_cast<size_t>(schedule.microbatches)),
        head_b_(head_f_) {
    result_.spread_head = true;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) ranks_[rank].taken.resize(s_.actions[rank].size());
  }

  Schedule run() {
    clock_.run([this](int rank, double now) { go_on(rank, now); });
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const size_t all = s_.actions[rank].size() + 2 * head_f_.size();
      if (result_.actions[rank].size() != all)
        throw Error("spread_head: the schedule " + s_.name + " deadlocks");
    }
    return std::move(result_);
  }

 private:
  using Clock = PassClock<double>;
  struct Rank {
    std::vector<bool> taken;     // [place in its list]
    size_t position = 0;         // nothing before it is left
    int ahead = 0;               // forwards that are done, behind `position`
    int head_f = 0, head_b = 0;  // microbatches whose S, and T, is done
  };
  struct Part {  // of the head, of a microbatch
    int ranks = 0;
    double end = 0;  // of the last one so far
  };

  bool is_done(const Part& part, double now) const { return part.ranks == s_.ranks && part.end <= now; }

  double time(const Action& action) const {
    const StageCost cost = one_for(costs_.stages, action.stage);
    if (action.kind == ActionKind::overlapped_pair)
      return pair_duration(cost, one_for(costs_.stages, action.backward_stage), action.backward_kind);
    return cost.time.of(action.kind);
  }

  bool is_ready(const Action& action, double now) const {
    bool ready = true;
    for_each_part(action, [&](const Action& part) { ready = ready && clock_.input(part) <= now; });
    return ready;
  }

  // T before S before the list; if all of these wait, a forward that comes later.
  void go_on(int rank, double now) {
    Rank& own = ranks_[static_cast<size_t>(rank)];
    const auto& list = s_.actions[rank];
    if (own.head_b < own.head_f && is_done(head_f_[static_cast<size_t>(own.head_b)], now))
      return begin(rank, head_backward(rank, own.head_b++), now);
    if (own.head_f < s_.microbatches && head_arrival(rank, own.head_f) <= now)
      return begin(rank, head_forward(rank, own.head_f++), now);
    for (; own.position < list.size() && own.taken[own.position]; ++own.position) --own.ahead;
    if (own.position == list.size()) return;
    if (is_ready(list[own.position], now)) return begin(rank, list[own.position++], now);
    if (own.ahead >= forwards_ahead_) return;
    if (const size_t place = later_forward(rank, now); place < list.size()) {
      own.taken[place] = true;
      ++own.ahead;
      begin(rank, list[place], now);
    }
  }

  double head_arrival(int rank, int microbatch) const {
    const bool is_last = rank == s_.rank_of(s_.stages() - 1);
    return head_input_[static_cast<size_t>(microbatch)] + (is_last ? 0 : costs_.head_latency);
  }

  // Looks at the first forward of each stage that is left: one that is ready; the list's size if none is.
  size_t later_forward(int rank, double now) const {
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
      if (forward && is_ready(action, now)) return i;
    }
    return list.size();
  }

  void begin(int rank, const Action& action, double now) {
    const double end = now + time(action);
    result_.actions[rank].push_back(action);
    for_each_part(action, [&](const Action& part) {
      const auto microbatch = static_cast<size_t>(part.microbatch);
      clock_.begin(rank, part, end);
      if (part.kind == ActionKind::forward && part.stage + 1 == s_.stages()) {
        head_input_[microbatch] = end;
        wake_all(end + costs_.head_latency);
      }
      if (part.kind == ActionKind::head_forward && is_last_of(head_f_[microbatch], end))
        wake_all(head_f_[microbatch].end);
      if (part.kind == ActionKind::head_backward && is_last_of(head_b_[microbatch], end)) {
        clock_.arrive(backward(s_.stages() - 1, part.microbatch),
                      head_b_[microbatch].end + costs_.head_latency);
      }
    });
  }

  // Counts a rank's part, which ends then; says whether all are counted.
  bool is_last_of(Part& part, double end) const {
    part.end = std::max(part.end, end);
    return ++part.ranks == s_.ranks;
  }
  void wake_all(double time) {
    for (int rank = 0; rank < s_.ranks; ++rank) clock_.wake(rank, time);
  }

  const Schedule& s_;
  const Costs& costs_;
  int forwards_ahead_;
  Schedule result_;
  Clock clock_;
  std::vector<Rank> ranks_;
  std::vector<double> head_input_;     // [microbatch] when the last stage has made it
  std::vector<Part> head_f_, head_b_;  // [microbatch]
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
  double shortest = PassClock<double>::never;
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
