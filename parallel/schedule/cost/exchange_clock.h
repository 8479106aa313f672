// When a rank's gathers of weights and reductions of gradients begin and end, and how long its passes wait
// for them: the part of simulate() that knows of exchanges.
#pragma once

#include <vector>

#include "parallel/schedule/cost/simulate.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// A stage's parameters are exchanged in groups of one size (blocks, embedding, head), in order of use, and a
// pass takes as long in each group. It waits before each group for that group alone: so it ends no sooner
// than all of it after the first group is there, and one group's part of it after the last one is. A rank has
// one channel for gathers and one for reductions, each of which does what it is given one after the other.
class ExchangeClock {
 public:
  // `costs.exchange`: one per stage.
  ExchangeClock(const Schedule& schedule, std::vector<ExchangeCost> costs, bool streamed);

  // UNSHARD at `now`: when the channel is at it; streamed: at its first group, as the passes gather the
  // others.
  Span unshard(int rank, int stage, double now);
  // REDUCE_GRAD at `now`: when the channel is at it. Right after the B or W it began during that pass, with
  // the first group whose gradients were there.
  Span reduce(int rank, int stage, double now);

  // When a F, B, I or W ends that begins at `start` and takes `time` where it waits for nothing.
  double end_of_pass(int rank, const Action& part, double start, double time);

  // When the rank's last reduction so far ends.
  double reduced(int rank) const { return channels_[rank].reduce; }

 private:
  struct Arrival {  // of the first and of the last group
    double first = 0;
    double last = 0;
  };
  struct Stage {
    bool unsharded = false;
    bool fresh = false;    // since UNSHARD, no pass has run
    bool forward = false;  // the last pass was one
    Arrival weights;
    Arrival buffers;  // when what the gradients are put into is free again
  };
  struct Channels {
    double gather = 0;  // free from then on
    double reduce = 0;
    int last_stage = -1;  // of the rank's last compute action, if it was a B or W
    Span last_pass;
  };

  void stream(int rank, const Action& part, double start);
  // The channel's next `time`, from `at` on at the earliest.
  static Span use(double& channel, double at, double time);

  std::vector<ExchangeCost> costs_;  // [stage]
  bool streamed_;
  std::vector<Stage> stages_;       // [stage]
  std::vector<Channels> channels_;  // [rank]
};

}  // namespace pptrain::schedule
