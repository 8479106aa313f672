// The proof that a schedule is sound, made before anything runs and after every pass.
#pragma once

#include "parallel/schedule/proof/replay.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// Throws Error unless
//  - every action is on the rank of its stage, and every stage x microbatch has exactly one F and exactly one
//    B, or one I and one W (F alone in a forward-only schedule);
//  - F comes before B or I, I before W, and a stage takes its microbatches in ascending order in F, in B/I
//    and in B/W (there Schedule::backward_before() where they are sequence slices), so that sums over
//    microbatches have one order under every schedule;
//  - where there is communication: exactly one send and one receive for what goes from rank to rank, none for
//    what stays; a send after what it sends, a receive before what uses it; and the receives on each directed
//    channel (rank to rank) in the order of the sends on it;
//  - where a stage is ever unsharded: it is so at each of its F, B and I (W needs no weights), no UNSHARD
//  comes
//    while it is and no RESHARD while it is not;
//  - where there is any REDUCE_GRAD: of each stage either one, after its last B or W, or one after each B or
//  W and
//    before the next; so that each gradient is reduced exactly once and none comes after the last reduction;
//  - running each rank's list in order, with sends that never block, comes to its end. `model` says where a
//    rank waits.
// Ranks at the same place in the pipeline walk one and the same list, so those that gather a stage together,
// or reduce it, do so in one order by construction, and these collectives cannot wait for each other in a
// circle. The message names the rank, the place in its list and the action, and shows the grid with that cell
// marked. Needs time and memory linear in the number of actions.
void validate(const Schedule& schedule, ReceiveModel model = ReceiveModel::at_consumer);

}  // namespace pptrain::schedule
