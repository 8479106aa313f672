// From what a generator lists (compute alone) to what the executor walks. Each pass takes a sound schedule
// and returns a sound one.
#pragma once

#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// Each overlapped pair as its forward, then its backward: the executor runs the two in turn, so what the
// forward makes can be sent before the backward runs, and the backward's input may arrive while the forward
// runs. What the pair says about overlap is lost.
Schedule split_pairs(const Schedule& schedule);

// Adds SEND_F after an F whose next stage is on another rank, RECV_F on that rank before its F, and likewise
// SEND_B and RECV_B around B and I. What passes between two stages of one rank is handed over there. A
// directed channel (rank to rank; F and B share it) has its receives in the order of its sends: where the
// receiver uses two messages in the other order, the earlier sent is received early. Free of deadlock even if
// a receive blocks in place. Throws Error if the schedule has communication already.
Schedule add_communication(const Schedule& schedule);

// Moves each receive one compute action ahead of its place, so that the transfer can overlap with that
// action, keeping the order on each channel. A receive moves only while at most `lookahead` earlier receives
// of its channel still wait for their consumer, which bounds the buffers. Receives then no longer may block
// in place.
Schedule hoist_receives(const Schedule& schedule, int lookahead = 1);

// Adds REDUCE_GRAD of each stage after its last B or W (and after the sends of that action).
Schedule add_reduce_grad(const Schedule& schedule);

// The compute actions alone.
Schedule compute_only(const Schedule& schedule);

// The forwards alone on the same ranks, stages and placement, for evaluation and generation; `microbatches`
// of 0 keeps the number. A rank takes its forwards in the order in which a full pipeline offers them:
// microbatch by microbatch on the V, in rounds of p microbatches on the loop.
Schedule forward_only(const Schedule& schedule, int microbatches = 0);

struct LowerOptions {
  int lookahead = 1;        // of hoist_receives
  bool reduce_grad = true;  // run add_reduce_grad
};

// All passes in turn, with a validation before the first and after each. A schedule that brings its own
// communication (a file) keeps it where it is.
Schedule lower(Schedule schedule, const LowerOptions& options = {});

}  // namespace pptrain::schedule
