#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "parallel/schedule/cost/memory.h"
#include "parallel/schedule/passes/list_scheduler.h"
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

// Runs the streams of all ranks, in units of time and without transfers, with so many microbatches more than
// whole ones. Nothing if ranks wait for each other.
std::optional<Schedule> run(const Schedule& shape, std::vector<RankStreams> ranks, int more_held) {
  ListScheduler<int64_t> scheduler(shape);
  const auto choose = [&](int rank, int64_t now) -> std::optional<Action> {
    RankStreams& own = ranks[static_cast<size_t>(rank)];
    for (const Action* head : own.heads()) {
      if (head == nullptr || !scheduler.is_ready(*head, now)) continue;
      const bool forward = head->kind == ActionKind::forward;
      if (forward && own.held >= own.most_held + more_held) continue;
      ++(forward ? own.next_forward : own.next_other);
      own.held += forward ? 1 : is_gradient(head->kind) ? -1 : 0;
      return *head;
    }
    return std::nullopt;
  };
  Schedule lists = scheduler.run(choose, time_units);
  if (!std::ranges::all_of(ranks, [](const RankStreams& own) { return own.done(); })) return std::nullopt;
  return lists;
}

}  // namespace

Schedule in_sequence_slices(const Schedule& schedule, int slices) {
  const Schedule whole = split_pairs(schedule);
  Schedule shape = whole.without_actions();
  shape.sequence_slices = slices;
  const std::vector<InFlight> held = in_flight(whole);
  std::vector<RankStreams> streams;
  for (int rank = 0; rank < whole.ranks; ++rank) {
    streams.push_back(streams_of(whole, rank, shape));
    streams.back().most_held = held[static_cast<size_t>(rank)].activations;
  }
  const int least = (slices - 1) * whole.stages_per_rank;
  for (int more = least; more <= least + whole.microbatches * whole.stages_per_rank; ++more) {
    if (std::optional<Schedule> lists = run(shape, streams, more)) return *std::move(lists);
  }
  throw Error(fmt::format("{} has no order for {} sequence slices: its ranks wait for each other", whole.name,
                          slices));
}

}  // namespace pptrain::schedule
