// A step as it ran, and where its time went: what simulate() predicts, measured.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "parallel/schedule/cost/simulate.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// The actions of a rank's list that take time, in its order: all but sends and receives. The two of an
// overlapped pair are listed apart.
std::vector<Action> timed_actions(const std::vector<Action>& list);

// What one rank did in one step, in seconds on a clock that all ranks share.
struct RankStep {
  Span step;                  // everything below lies in it
  std::vector<Span> actions;  // one for each of timed_actions
  std::vector<Span> work;     // the rank's own work outside the pipeline: data, optimizer
  // Of the step, for other ranks, within actions too. Nothing on a GPU, where the host waits for none.
  std::optional<double> waited = std::nullopt;
};

// Splits each rank's step: `busy` is its actions and its work; busy + idle() is the length of its step. The
// barrier lasts from the rank's last action to the end of its step. Of the idle time before an action,
// wait_for_transfer is the part after the action's input was made (all of it if this rank made the input):
// the transfer, and this rank's posting of sends and receives. Throws Error if the ranks or the numbers of
// actions are not the schedule's.
std::vector<RankTime> split_step(const Schedule& schedule, std::span<const RankStep> ranks);

}  // namespace pptrain::schedule
