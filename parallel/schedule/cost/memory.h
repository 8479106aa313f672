// The most that a rank holds while it walks its list, in microbatches and in bytes: known before anything
// runs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/schedule/per_pass.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// Counted in stage-microbatches: the saved activations of one microbatch on one stage. Divided by
// stages_per_rank, it is in microbatches of all the layers of a rank.
struct InFlight {
  int activations = 0;      // F done, B or I not yet: all saved activations
  int weight_operands = 0;  // I done, W not yet: what I leaves for W
  int held = 0;             // F done, B or W not yet: the two together at their worst
  int receive_buffers = 0;  // posted, and the action that uses them not done; 0 without communication
};

// The peaks of each rank. An action counts while it runs: a forward's activations before the backward that
// follows it.
std::vector<InFlight> in_flight(const Schedule& schedule);

// Bytes of one microbatch on one stage.
struct StageBytes {
  int64_t activation = 0;       // from F to B or I; the stage's input included
  int64_t weight_operands = 0;  // from I to W
  // The most that a pass holds besides activations and weight operands. Its input and output tensors count
  // while it runs, unless they are among the activations or operands that it keeps.
  PerPass<int64_t> workspace = {};
  int64_t message = 0;        // the stage's input, or the gradient of it
  int64_t head = 0;           // the rank's part of a spread head, from S to T; counts at its first stage
  int64_t head_gradient = 0;  // of the last stage: all ranks' terms of one microbatch, from T to B or I

  // Not of a microbatch. Gathered weights that the rank holds from UNSHARD to RESHARD in addition to its own
  // shard: the whole stage if they are kept, the two or three groups that are there at a time if they are
  // streamed.
  int64_t gathered = 0;
  // If gradients are reduced after each microbatch: those on their way, from B or W to the end of the compute
  // action after its REDUCE_GRAD. 0 if they are reduced once a step.
  int64_t reducing = 0;
};

struct MemorySplit {
  int64_t activations = 0;
  int64_t weight_operands = 0;
  int64_t workspace = 0;  // of the action that runs
  int64_t buffers = 0;    // posted receives, outputs not sent yet, tensors between two stages of the rank
  int64_t gathered = 0;   // weights of other ranks
  int64_t reducing = 0;   // gradients on their way

  int64_t total() const { return activations + weight_operands + workspace + buffers + gathered + reducing; }
};

// Each rank's memory at the moment of its largest total. `bytes`: of each stage, or, if microbatches of a
// stage differ, by cell (Schedule::cell). A receive holds its buffer from its post on, a send holds its
// tensor until the action after it is done. In a schedule without communication, data that would travel
// between ranks counts nothing. The two of an overlapped pair run at once. Throws Error for another number of
// entries.
std::vector<MemorySplit> peak_bytes(const Schedule& lowered, std::span<const StageBytes> bytes);
MemorySplit peak_bytes(const Schedule& lowered, std::span<const StageBytes> bytes, int rank);

}  // namespace pptrain::schedule
