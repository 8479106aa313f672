// The order in which the interleaved schedules take the chunks (the stages of one rank): rounds of k
// microbatches, each chunk in turn for the whole round; backwards the chunks come in reverse.
#pragma once

#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// Microbatches of a round: m over as many rounds as fit p; 0 if m does not divide so.
int microbatches_per_round(int ranks, int microbatches);

// Throws UsageError, with the nearest numbers of microbatches that would do, if rounds do not divide m.
void check_rounds(const Schedule& schedule);

class InterleavedOrder {
 public:
  InterleavedOrder(const Schedule& schedule, int rank, int round)
      : ranks_(schedule.ranks), chunks_(schedule.stages_per_rank), rank_(rank), round_(round) {}

  // The i-th forward of the rank, as the action; i from 0 to m v - 1.
  Action forward_at(int i) const { return forward(stage(chunk(i)), microbatch(i)); }
  Action backward_at(int i) const { return backward(stage(chunks_ - 1 - chunk(i)), microbatch(i)); }
  Action backward_input_at(int i) const {
    return backward_input(stage(chunks_ - 1 - chunk(i)), microbatch(i));
  }
  Action backward_weight_at(int i) const {
    return backward_weight(stage(chunks_ - 1 - chunk(i)), microbatch(i));
  }

 private:
  int chunk(int i) const { return i / round_ % chunks_; }
  int stage(int chunk) const { return chunk * ranks_ + rank_; }
  int microbatch(int i) const { return i / (round_ * chunks_) * round_ + i % round_; }

  int ranks_;
  int chunks_;
  int rank_;
  int round_;
};

}  // namespace pptrain::schedule
