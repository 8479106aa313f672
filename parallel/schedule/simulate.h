// What a schedule costs in time, before it runs: an event-driven simulation with the costs at hand.
#pragma once

#include <vector>

#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// Times of one microbatch on one stage. Any unit; results are in the same.
struct StageCost {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double backward = -1;  // of B at once; negative: backward_input + backward_weight
};

struct Costs {
  std::vector<StageCost> stages;  // one per stage; a single one serves all; none: all times 1
  // From the end of a send to the data's being there, per boundary (stage s to s + 1 and back); a single one
  // serves all, none is 0. Boundaries inside a rank cost nothing.
  std::vector<double> latency;
  double overlap = 1;  // an overlapped pair takes this times the sum of its two
};

struct Span {
  double start = 0;
  double end = 0;
};

// Idle time is split at two moments: fill is before the rank's first backward, drain after its last forward
// (after the first backward, where that is later), steady between. Forward only: before the first forward and
// after the last.
struct RankTime {
  double busy = 0;
  double fill = 0;
  double steady = 0;
  double drain = 0;
  double wait_for_transfer =
      0;  // the part of the idle time in which the data was on its way (also counted above)
  double idle() const { return fill + steady + drain; }
};

struct Simulation {
  // [rank][place in the list]. Of communication: the moment the rank posts it.
  std::vector<std::vector<Span>> spans;
  std::vector<RankTime> ranks;
  double step_time = 0;  // until the last rank is done

  double bubble(int rank) const;  // idle fraction of the step
  double bubble() const;          // of all ranks together
};

// A rank runs its list in order; sends and receives take none of its time. A transfer begins when its data is
// computed and its receive is posted. Throws Error if the schedule deadlocks or the costs do not fit its
// stages. Linear time.
Simulation simulate(const Schedule& schedule, const Costs& costs = {});

}  // namespace pptrain::schedule
