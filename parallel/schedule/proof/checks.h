// The parts of validate(); each throws as that does. Internal to this folder.
#pragma once

#include "parallel/schedule/proof/places.h"
#include "parallel/schedule/proof/replay.h"

namespace pptrain::schedule {

// Every stage x microbatch has its F, B or I, and B or W.
void check_complete(const Places& places);

// F before B or I, I before W; ascending microbatches of each stage. After check_complete.
void check_order(const Places& places);

// One send and one receive of what goes from rank to rank, around the actions that make and use it, and the
// receives of each channel in the order of its sends. After check_order, where there is communication.
void check_messages(const Places& places);

// UNSHARD, RESHARD and REDUCE_GRAD. A stage that is never unsharded is taken to be whole all the time; a list
// without any REDUCE_GRAD leaves gradients to others.
void check_whole_stage_actions(const Places& places);

// The lists come to their end.
void check_progress(const Places& places, ReceiveModel model);

}  // namespace pptrain::schedule
