// A step as it ran, and where its time went: what simulate() predicts, measured.
#pragma once

#include <span>
#include <vector>

#include "parallel/schedule/cost/simulate.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// What of a rank's list takes its time, in the list's order: everything but sends and receives, the halves of
// an overlapped pair apart.
std::vector<Action> timed_actions(const std::vector<Action>& list);

// What one rank did in one step, in seconds on a clock that all ranks share.
struct RankStep {
  Span step;                  // everything below lies in it
  std::vector<Span> actions;  // one for each of timed_actions
  std::vector<Span> work;     // the rank's own work outside the pipeline: data, optimizer
};

// Splits each rank's step: `busy` is its actions and its work; busy + idle() is the length of its step. The
// barrier lasts from the rank's last action to the end of its step. Idle time before an action counts as
// wait_for_transfer from the moment when the rank that makes the action's input had made it (all of it, where
// this rank made it itself): the transfer, and this rank's own posting of sends and receives. Throws Error if
// the ranks or the numbers of actions are not the schedule's.
std::vector<RankTime> split_step(const Schedule& schedule, std::span<const RankStep> ranks);

}  // namespace pptrain::schedule
