#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "parallel/schedule/cost/memory.h"
#include "parallel/schedule/passes/pass_clock.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::schedule {
namespace {

// Time units of F, I and W.
int64_t time_units(const Action& action) {
  return action.kind == ActionKind::backward ? 2 : 1;
}

// One rank's list in two streams, each of which keeps its order.
struct RankStreams {
  std::vector<Action> forwards, others;
  std::vector<size_t> wanted;  // [other] forwards that are to come before it
  size_t next_forward = 0, next_other = 0;
  int held = 0, most_held = 0;  // microbatches between F and B or I

  bool done() const { return next_forward == forwards.size() && next_other == others.size(); }
  // The heads that are there; the one whose turn it is comes first.
  std::array<const Action*, 2> heads() const {
    const Action* forward = next_forward < forwards.size() ? &forwards[next_forward] : nullptr;
    const Action* other = next_other < others.size() ? &others[next_other] : nullptr;
    if (other != nullptr && next_forward >= wanted[next_other]) return {other, forward};
    return {forward, other};
  }
};

// `shape`: of the lists in slices.
RankStreams streams_of(const Schedule& whole, int rank, const Schedule& shape) {
  RankStreams result;
  std::vector<std::vector<size_t>> places(static_cast<size_t>(whole.stages()));  // [stage] of its forwards
  for (const Action& action : whole.actions[rank]) {
    if (action.kind != ActionKind::forward) continue;
    result.forwards.push_back(action);
    places[static_cast<size_t>(action.stage)].push_back(result.forwards.size());
  }
  size_t before = 0;
  std::vector<size_t> of_stage(places.size());
  for (Action action : whole.actions[rank]) {
    const auto stage = static_cast<size_t>(action.stage);
    if (action.kind == ActionKind::forward) {
      ++before;
      ++of_stage[stage];
      continue;
    }
    const size_t count = of_stage[stage] + static_cast<size_t>(shape.sequence_slices) - 1;
    result.wanted.push_back(std::max(before, places[stage][std::min(count, places[stage].size()) - 1]));
    action.microbatch = shape.nth_backward(action.microbatch);
    result.others.push_back(action);
  }
  return result;
}

// Runs the streams of all ranks, in units of time and without transfers, and lists what each rank did.
class SliceLists {
 public:
  SliceLists(const Schedule& whole, int slices, int more_held)
      : result_(whole.without_actions()), clock_(result_) {
    result_.sequence_slices = slices;
    const std::vector<InFlight> held = in_flight(whole);
    for (int rank = 0; rank < whole.ranks; ++rank) {
      RankStreams& own = ranks_.emplace_back(streams_of(whole, rank, result_));
      own.most_held = held[static_cast<size_t>(rank)].activations + more_held;
    }
  }

  // False if ranks wait for each other.
  bool run() {
    clock_.run([this](int rank, int64_t now) { go_on(rank, now); });
    return std::ranges::all_of(ranks_, [](const RankStreams& own) { return own.done(); });
  }

  Schedule take() { return std::move(result_); }

 private:
  void go_on(int rank, int64_t now) {
    RankStreams& own = ranks_[static_cast<size_t>(rank)];
    for (const Action* head : own.heads()) {
      if (head == nullptr || clock_.input(*head) > now) continue;
      const bool forward = head->kind == ActionKind::forward;
      if (forward && own.held >= own.most_held) continue;
      result_.actions[rank].push_back(*head);
      ++(forward ? own.next_forward : own.next_other);
      own.held += forward ? 1 : is_gradient(head->kind) ? -1 : 0;
      return clock_.begin(rank, *head, now + time_units(*head));
    }
  }

  Schedule result_;
  PassClock<int64_t> clock_;
  std::vector<RankStreams> ranks_;
};

}  // namespace

Schedule in_sequence_slices(const Schedule& schedule, int slices) {
  const Schedule whole = split_pairs(schedule);
  const int least = (slices - 1) * whole.stages_per_rank;
  for (int more = least; more <= least + whole.microbatches * whole.stages_per_rank; ++more) {
    SliceLists lists(whole, slices, more);
    if (lists.run()) return lists.take();
  }
  throw Error(fmt::format("{} has no order for {} sequence slices: its ranks wait for each other", whole.name,
                          slices));
}

}  // namespace pptrain::schedule
