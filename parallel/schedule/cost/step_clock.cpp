#include "parallel/schedule/cost/step_clock.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <optional>

#include "core/base/error.h"
#include "parallel/schedule/inputs.h"
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

  // The event of a compute action or a receive.
  static Event event_of(const Schedule& schedule, const Inputs& inputs, const PassTable<char>& passes,
                        const Action& action);

  std::vector<Event> events_;  // in an order in which they can happen
  // Each stage's passes, in the order of ActionKind; its transfer; its head's transfer.
  static constexpr int transfer = PerPass<SizedCost>::kinds, of_stage = transfer + 2;
  std::vector<SizedCost> costs_;
  size_t ranks_ = 1, moments_ = 2;
};

StepClock::StepClock(const Schedule& schedule, const SizedCosts& costs)
    : ranks_(static_cast<size_t>(schedule.ranks)) {
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
  const Inputs inputs(schedule);
  const PassTable<char> passes(schedule);
  moments_ += 2 * passes.size();
  const auto visit = [&](int rank, size_t, const Action& action) {
    if (!is_compute(action.kind) && !is_receive(action.kind)) return;
    for_each_part(action, [&](const Action& part) {
      events_.push_back(event_of(schedule, inputs, passes, part));
      events_.back().rank = static_cast<uint32_t>(rank);
    });
  };
  if (!Replay(schedule, WaitModel::at_consumer, schedule.has_communication()).run(visit))
    throw Error("step clock: the schedule " + schedule.name + " deadlocks; validate it first");
}

StepClock::Event StepClock::event_of(const Schedule& schedule, const Inputs& inputs,
                                     const PassTable<char>& passes, const Action& action) {
  const auto end_of = [&](const Action& pass) { return static_cast<uint32_t>(2 + passes.place(pass)); };
  const auto posted_for = [&](const Action& pass) {
    return static_cast<uint32_t>(2 + passes.size() + passes.place(pass));
  };
  const auto cost_of = [](int stage, int which) {
    return static_cast<uint32_t>(1 + of_stage * stage + which);
  };
  Event event{.microbatch = static_cast<uint32_t>(schedule.list_of(action.microbatch))};
  if (is_receive(action.kind)) {
    event.receive = true;
    event.own = posted_for(pass_of(action));
    return event;
  }
  event.cost = cost_of(action.stage, static_cast<int>(action.kind));
  if (action.kind != ActionKind::backward_weight) event.own = end_of(action);
  const std::optional<Input> input = inputs.of(action);
  if (!input) return event;
  event.input = end_of(input->pass);
  if (input->boundary < 0) return event;
  if (input->boundary + 1 == schedule.stages()) {
    event.transfer = cost_of(action.stage, transfer + 1);
  } else {
    event.transfer = cost_of(input->boundary, transfer);
    event.posted = posted_for(action);
  }
  return event;
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
