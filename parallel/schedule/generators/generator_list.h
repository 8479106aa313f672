// What each generator file says of its schedule, and the list of them. Internal to this folder: callers use
// make_schedule.
#pragma once

#include <array>
#include <string_view>

#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

struct Generator {
  std::string_view name;
  std::string_view alias;  // PyTorch's class or another name: lower case, no "Schedule", "_" or "-"
  int default_stages_per_rank = 1;
  int only_stages_per_rank = 0;  // 0: any
  // With one stage per rank it is another schedule's list of actions, or one with more microbatches in flight
  // for nothing.
  bool repeats_with_one_stage = false;
  // Throws UsageError, saying what to change, if the schedule does not exist for these sizes. None: it exists
  // for all.
  void (*check)(const Schedule&) = nullptr;
  // Fills the lists with compute actions, and sets the placement if it is not a loop. Name and sizes are set
  // and checked, the lists are empty.
  void (*generate)(Schedule&) = nullptr;
};

// A new schedule is a line here and one below, which is the order in which users see them.
extern const Generator gpipe;
extern const Generator one_f_one_b;
extern const Generator interleaved_1f1b;
extern const Generator looped_bfs;
extern const Generator zb_h1;
extern const Generator zb_h2;
extern const Generator interleaved_zb;
extern const Generator zbv;
extern const Generator v_half;
extern const Generator v_min;
extern const Generator dualpipe_v;
extern const Generator inference;

inline constexpr std::array all_generators = {
    &gpipe,          &one_f_one_b, &interleaved_1f1b, &looped_bfs, &zb_h1,      &zb_h2,
    &interleaved_zb, &zbv,         &v_half,           &v_min,      &dualpipe_v, &inference,
};

}  // namespace pptrain::schedule
