// The generators, one file each. Internal to this folder: callers use make_schedule. Each gets a schedule
// whose sizes and name are set, whose constraints are checked and whose lists are empty, sets the placement
// if it is not a loop, and fills the lists with compute actions.
#pragma once

#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

void generate_gpipe(Schedule& schedule);
void generate_1f1b(Schedule& schedule);
void generate_interleaved_1f1b(Schedule& schedule);
void generate_looped_bfs(Schedule& schedule);
void generate_zb_h1(Schedule& schedule);
void generate_zb_h2(Schedule& schedule);
void generate_interleaved_zb(Schedule& schedule);
void generate_zbv(Schedule& schedule);
void generate_v_half(Schedule& schedule);
void generate_v_min(Schedule& schedule);
void generate_dualpipe_v(Schedule& schedule);
void generate_inference(Schedule& schedule);

// Microbatches of a round of the interleaved schedules: m over as many rounds as fit p; 0 if m does not
// divide so.
int microbatches_per_round(int ranks, int microbatches);

}  // namespace pptrain::schedule
