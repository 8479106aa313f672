// The time that a schedule takes, before it runs: an event-driven simulation with the costs at hand.
#pragma once

#include <vector>

#include "parallel/schedule/per_pass.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// Times of one microbatch on one stage. Any unit; results are in the same.
struct StageCost {
  // S and T of the rank's part of a spread head count at its first stage.
  PerPass<double> time = {.forward = 1,
                          .backward = 2,
                          .backward_input = 1,
                          .backward_weight = 1,
                          .head_forward = 1,
                          .head_backward = 1};
  // The part of it in which the rank only waits for exchanges with ranks of its stage.
  PerPass<double> wire = {};
};

// The time of an overlapped pair: the exchanges that each half waits for overlap with the other half's
// computation.
double pair_duration(const StageCost& forward, const StageCost& backward, ActionKind backward_kind);

// The exchange of a stage's parameters, between the ranks that they are sharded over or that have other
// samples.
struct ExchangeCost {
  double gather = 0;  // of all its weights
  double reduce = 0;  // of all its gradients
  int groups = 1;     // blocks, embedding, head: gathered and reduced one by one
  // Groups that are no equal parts of all; negative: one of `groups` equal ones.
  double first_gather = -1;  // of `gather`: the groups that are there when a forward begins to compute
  double last_time = -1;     // of a forward's time: in the group that is gathered last
  double last_reduce = -1;   // of `reduce`: the group whose gradient is there last
};

struct Costs {
  std::vector<StageCost> stages;  // one per stage; a single one serves all; none: StageCost{}
  // From the end of a send to the arrival of the data, per boundary (stage s to s + 1 and back); a single one
  // serves all, none is 0. Boundaries inside a rank cost nothing.
  std::vector<double> latency;
  // The same from the last stage's F to S on other ranks, and from their T to its B or I.
  double head_latency = 0;
  // The time of UNSHARD and of REDUCE_GRAD, per stage; a single one serves all, none: no time.
  std::vector<ExchangeCost> exchange{};
  bool streamed = false;  // each F, B and I gathers weights anew; otherwise UNSHARD gathers them for all
  // By cell (Schedule::cell), in the place of `stages` if microbatches of a stage differ; else none.
  std::vector<StageCost> cells{};
};

// Element `index` of values given for each, or once for all; T{} if there are none.
template <typename T>
T one_for(const std::vector<T>& given, int index) {
  if (given.empty()) return {};
  return given[given.size() == 1 ? 0 : static_cast<size_t>(index)];
}

// The cost of the pass's microbatch on its stage.
StageCost cost_of(const Costs& costs, const Schedule& schedule, const Action& pass);

struct Span {
  double start = 0;
  double end = 0;
};

// Idle time is split at three moments: fill is before the rank's first backward (forward only: before its
// first forward), drain after its last forward, steady between. Barrier is after its last action, when it
// waits for the last rank to end the step.
struct RankTime {
  double busy = 0;
  double fill = 0;
  double steady = 0;
  double drain = 0;
  double barrier = 0;
  double wait_for_transfer = 0;  // when the input was on its way: a part of fill, steady and drain
  double wait_for_exchange = 0;  // in passes, for weights or for gradient buffers: a part of busy
  double reducing = 0;           // after its last action, until its gradients are reduced: a part of barrier
  double idle() const { return fill + steady + drain + barrier; }
};

struct Simulation {
  // [rank][place in the list]. For communication and RESHARD: the moment the rank comes to it. For UNSHARD
  // and REDUCE_GRAD: the time of the exchange, which takes none of the rank's time; streamed, UNSHARD is the
  // first group's gather.
  std::vector<std::vector<Span>> spans;
  std::vector<RankTime> ranks;
  std::vector<double> ends;  // [rank] when it has done its list and its gradients are reduced
  double step_time = 0;      // until the last rank is done

  double bubble(int rank) const;  // idle fraction of the step
  double bubble() const;          // of all ranks together
};

// A rank runs its list in order; sends and receives take none of its time. A transfer begins when its data is
// computed and its receive is posted. Gathers of weights and reductions of gradients overlap with the passes,
// group by group (simulate.cpp, ExchangeClock). Throws Error if the schedule deadlocks or the costs do not
// fit its stages. Linear time.
Simulation simulate(const Schedule& schedule, const Costs& costs = {});

// The time from a step to the next in a long run of steps under post-validation: a rank waits for the end of
// the step on every rank only at the end of the next step's prefix (see speculation.h). `schedule`: lowered
// and validated.
double post_validated_step_time(const Schedule& schedule, const Costs& costs);

}  // namespace pptrain::schedule
