#include "parallel/schedule/cost/step_clock.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "core/base/error.h"
#include "parallel/schedule/proof/replay.h"

namespace pptrain::schedule {

namespace {

class StepClock {
 public:
  StepClock(const Schedule& schedule, const SizedCosts& costs);

  int64_t end(std::span<const int64_t> tokens, std::span<const int64_t> squares) const;

 private:
  // A receive, which costs nothing and notes when it is posted, or a pass.
  struct Event {
    uint32_t rank = 0, microbatch = 0;
    uint32_t cost = 0, transfer = 0;  // which
    // Moments: of the pass that makes its input, of the posted receive, of its own end, which of S and T is
    // the last rank's. 0: the step's begin, 1: not needed.
    uint32_t input = 0, posted = 0, own = 1;
    bool receive = false;
  };

  // Adds a compute action or a receive.
  void add(const Schedule& schedule, const PlacementTable& table, int rank, const Action& action);

  std::vector<Event> events_;  // in an order in which they can happen
  // Each stage's passes, in the order of ActionKind; its transfer; its head's transfer.
  static constexpr int transfer = PerPass<SizedCost>::kinds, of_stage = transfer + 2;
  std::vector<SizedCost> costs_;
  size_t ranks_ = 1, moments_ = 2;
};

StepClock::StepClock(const Schedule& schedule, const SizedCosts& costs)
    : ranks_(static_cast<size_t>(schedule.ranks)),
      moments_(2 + 4 * schedule.cells() + 2 * static_cast<size_t>(schedule.microbatches)) {
  const int stages = schedule.stages();
  if (std::ssize(costs) != stages)
    throw Error(fmt::format("step clock: costs of {} stages for {}", costs.size(), stages));
  costs_.emplace_back();  // of what costs nothing
  for (const StageSizedCosts& stage : costs) {
    for (int pass = 0; pass < transfer; ++pass)
      costs_.push_back(stage.passes.of(static_cast<ActionKind>(pass)));
    costs_.push_back(stage.transfer);
    costs_.push_back(stage.head_transfer);
  }
  const PlacementTable table(schedule);
  const auto visit = [&](int rank, size_t, const Action& action) {
    if (!is_compute(action.kind) && !is_receive(action.kind)) return;
    for_each_part(action, [&](const Action& part) { add(schedule, table, rank, part); });
  };
  if (!Replay(schedule, ReceiveModel::at_consumer, schedule.has_communication()).run(visit))
    throw Error("step clock: the schedule " + schedule.name + " deadlocks; validate it first");
}

void StepClock::add(const Schedule& schedule, const PlacementTable& table, int rank, const Action& action) {
  enum Moment : uint32_t { end_f, end_b, posted_f, posted_b };
  const auto moment = [&](Moment which, int stage) {
    return static_cast<uint32_t>(2 + 4 * schedule.cell(stage, action.microbatch) + which);
  };
  const auto head = [&](ActionKind kind) {
    const size_t part =
        2 * static_cast<size_t>(action.microbatch) + (kind == ActionKind::head_forward ? 0 : 1);
    return static_cast<uint32_t>(2 + 4 * schedule.cells() + part);
  };
  const int stage = action.stage, last = schedule.stages() - 1;
  Event event{.rank = static_cast<uint32_t>(rank),
              .microbatch = static_cast<uint32_t>(action.microbatch / schedule.sequence_slices)};
  const auto input = [&](Moment made, int from, Moment posted, int boundary) {
    event.input = moment(made, from);
    if (!table.crosses[static_cast<size_t>(boundary)]) return;
    event.posted = moment(posted, stage);
    event.transfer = static_cast<uint32_t>(1 + of_stage * boundary + transfer);
  };
  const auto from_head = [&](uint32_t made) {
    event.input = made;
    event.transfer = static_cast<uint32_t>(1 + of_stage * stage + transfer + 1);
  };
  if (is_receive(action.kind)) {
    event.receive = true;
    event.own = moment(action.kind == ActionKind::recv_f ? posted_f : posted_b, stage);
    events_.push_back(event);
    return;
  }
  event.cost = static_cast<uint32_t>(1 + of_stage * stage + static_cast<int>(action.kind));
  if (action.kind == ActionKind::forward) {
    event.own = moment(end_f, stage);
    if (stage > 0) input(end_f, stage - 1, posted_f, stage - 1);
  } else if (is_gradient(action.kind)) {
    event.own = moment(end_b, stage);
    if (stage < last) input(end_b, stage + 1, posted_b, stage);
    if (stage == last && schedule.spread_head) from_head(head(ActionKind::head_backward));
  } else if (is_of_head(action.kind)) {
    event.own = head(action.kind);
    if (action.kind == ActionKind::head_backward) {
      event.input = head(ActionKind::head_forward);
    } else if (rank == table.rank_of[static_cast<size_t>(last)]) {
      event.input = moment(end_f, last);
    } else {
      from_head(moment(end_f, last));
    }
  }
  events_.push_back(event);
}

int64_t StepClock::end(std::span<const int64_t> tokens, std::span<const int64_t> squares) const {
  std::vector<int64_t> at(moments_ + ranks_);
  const std::span<int64_t> free = std::span(at).subspan(moments_);
  for (const Event& event : events_) {
    int64_t& now = free[event.rank];
    if (!event.receive) {
      const auto ticks = [&](uint32_t cost) {
        return costs_[cost].of(tokens[event.microbatch], squares[event.microbatch]);
      };
      now = std::max(now, std::max(at[event.input], at[event.posted]) + ticks(event.transfer));
      now += ticks(event.cost);
    }
    at[event.own] = std::max(at[event.own], now);
  }
  return std::ranges::max(free);
}

}  // namespace

std::function<int64_t(std::span<const int64_t>, std::span<const int64_t>)> step_clock(
    const Schedule& schedule, const SizedCosts& costs) {
  return [clock = StepClock(schedule, costs)](std::span<const int64_t> tokens,
                                              std::span<const int64_t> squares) {
    return clock.end(tokens, squares);
  };
}

}  // namespace pptrain::schedule
