// The proof that a schedule is sound, made before anything runs and after every pass.
#pragma once

#include "parallel/schedule/proof/replay.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// Throws Error unless all of this holds:
// 1. Every action is on the rank of its stage. Every stage x microbatch has exactly one F and exactly one B,
//    or one I and one W (F alone in a forward-only schedule).
// 2. F comes before B or I, and I before W. A stage takes its microbatches in ascending order in F, and in
//    the order of Schedule::backward_before() in B/I and in B/W (ascending without sequence slices). So sums
//    over microbatches have one order under every schedule.
// 3. If there is communication: What goes from rank to rank has exactly one send and one receive, what stays
//    has none. A send comes after what it sends, a receive before what uses it. The receives on each directed
//    channel (rank to rank) are in the order of the sends on it.
// 4. If a stage is ever unsharded, it is so at each of its F, B and I (W needs no weights). No UNSHARD comes
//    while it is, and no RESHARD while it is not.
// 5. If there is any REDUCE_GRAD, each stage has either one, after its last B or W, or one after each B or W
//    and before the next. So each gradient is reduced exactly once, and none comes after the last reduction.
// 6. Running each rank's list in order comes to its end. `model` says where a rank waits; lists with
//    blocking_sends are proven for these.
// Ranks at the same place in the pipeline walk one and the same list. So those that gather or reduce a stage
// together do so in one order by construction, and these collectives cannot wait for each other in a circle.
// The message names the rank, the place in its list and the action, and shows the grid with that cell marked.
// Needs time and memory linear in the number of actions.
void validate(const Schedule& schedule, WaitModel model = WaitModel::at_consumer);

}  // namespace pptrain::schedule
