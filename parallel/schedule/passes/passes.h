// From what a generator lists (compute alone) to what the executor walks. Each pass takes a sound schedule
// and returns a sound one.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/schedule/cost/simulate.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// Each overlapped pair as its forward, then its backward, so that what the forward makes can be sent before
// the backward runs, and the backward's input may arrive while the forward runs. With `same_stage`, pairs of
// one stage alone.
Schedule split_pairs(const Schedule& schedule, bool same_stage = false);

// A list of compute actions over sequence slices instead: its microbatches are slices, `slices` in a row of
// each list, and of a list the last slice's B, I and W come first. A rank's forwards keep their order, and so
// do its other actions. Before each of these others come slices - 1 more forwards of its stage than before,
// as 1f1b has in Seq1F1B (arXiv 2406.03488), unless the rank would wait. It then takes what is ready, and
// holds at most slices - 1 microbatches of each stage more than before, or as many as it needs. Pairs are
// split. Throws Error for a schedule that deadlocks.
Schedule in_sequence_slices(const Schedule& schedule, int slices);

// Adds SEND_F after an F whose next stage is on another rank, RECV_F on that rank before its F, and likewise
// SEND_B and RECV_B around B and I. What passes between two stages of one rank is handed over there. A
// directed channel (rank to rank; F and B share it) has its receives in the order of its sends: if the
// receiver uses two messages in the other order, the earlier sent is received early. Free of deadlock even if
// a receive blocks in place. Throws Error if the schedule has communication already.
Schedule add_communication(const Schedule& schedule);

// Moves each receive one compute action ahead of its place, so that the transfer can overlap with that
// action, keeping the order on each channel. A receive moves only while at most one earlier receive of its
// channel still waits for its consumer, which bounds the buffers. Receives then no longer may block in place.
Schedule hoist_receives(const Schedule& schedule);

// For transports whose sends wait until they are received, as NCCL's do. Leaves each receive at its consumer,
// or moves it before the pass at which ranks would wait for each other if each waited for all its messages
// before each pass (WaitModel::blocking); likewise adds RECV_HEAD for messages of a spread head. That frees
// any list: if all that is sent is received, no send holds a rank, and the order of passes cannot deadlock.
Schedule match_messages(const Schedule& schedule);

// How often a stage's weights are gathered if they are sharded over ranks.
enum class Gather {
  never,     // each rank holds the whole weights of its stages
  kept,      // once a step
  streamed,  // anew for each pass (distributed.reshard_after_forward)
};

// Adds UNSHARD and RESHARD of each stage; `gather` is not `never`. RESHARD comes after the stage's last F, B
// or I (and the sends of that action).
//   Kept: UNSHARD comes once, before the rank's first computation. The rank's stages are in the order of
//   their first use, so that all gathers but the first overlap with computations.
//   Streamed: UNSHARD comes before each F, B and I that needs it, one compute action early, so that the
//   gather overlaps with that action; RESHARD comes after each. If the stage is needed again after at most
//   one other compute action of the rank, there is neither in between.
// The schedule must have none of the two.
Schedule add_unshard(const Schedule& schedule, Gather gather);

// How often a stage's gradients are summed over the ranks that have other samples.
enum class Reduce {
  none,
  step,        // once, after the stage's last B or W
  microbatch,  // after each B or W
};

// Adds REDUCE_GRAD of each stage, after the sends that follow its B or W. The schedule must have none.
Schedule add_reduce_grad(const Schedule& schedule, Reduce reduce = Reduce::step);

// The head over all ranks: adds each rank's S and T of every microbatch to compute actions, as soon as the
// rank can run them at these costs. A rank that would wait for the head runs forwards ahead; it then holds at
// most two microbatches more than before (the idea of Vocabulary Parallelism, arXiv 2411.05288). The order of
// the other actions stays. Throws Error if the schedule has S and T already, or communication.
Schedule spread_head(const Schedule& schedule, const Costs& costs);

// The same with a whole head: without S and T, if there are any.
Schedule whole_head(const Schedule& schedule);

// The compute actions alone.
Schedule compute_only(const Schedule& schedule);

// The forwards alone, and S and T of a head that is spread, on the same ranks, stages and placement, for
// evaluation and generation; `microbatches` of 0 keeps the number of whole ones. A rank takes its forwards in
// the order in which a full pipeline offers them: microbatch by microbatch on the V, in rounds of p
// microbatches on the loop.
Schedule forward_only(const Schedule& schedule, int microbatches = 0);

// The unit of time in which forward_only()'s forward of the stage would run if every rank were always busy.
// It grows from each stage to the next, so sorting by it gives lists that cannot deadlock, whatever the
// sizes.
int64_t forward_slot(const Schedule& schedule, int stage, int64_t microbatch);

// What ranks that share a stage exchange. The defaults are for a rank that is alone with its stages.
struct ShardOptions {
  Gather gather = Gather::never;
  Reduce reduce = Reduce::step;
  // Passes wait for exchanges (tp, cp, ep) between hosts or GPUs: overlapped pairs of two stages stay, so
  // that one half's exchanges overlap with the other half. Otherwise splitting them is faster.
  bool keep_pairs = false;
  bool blocking_sends = false;  // as NCCL's

  auto operator<=>(const ShardOptions&) const = default;
};

// All passes in turn, with a validation before the first and after each. A schedule that brings its own
// communication (a file) keeps it in its place. Its UNSHARD and RESHARD it keeps if it unshards every stage,
// its REDUCE_GRAD if each stage has as many as `reduce` wants; otherwise they are dropped and placed anew.
// What nothing asks for (UNSHARD of weights that are not sharded) stays and costs nothing. `last`: the name
// of the pass to end with; all if empty.
Schedule lower(Schedule schedule, const ShardOptions& shard = {}, std::string_view last = {});

// The passes of lower() by name, in their order.
std::vector<std::string> pass_names();

}  // namespace pptrain::schedule
