// Every pipeline schedule by name. A generator lists the compute actions alone; passes.h turns the list into
// one that can be executed.
#pragma once

#include <compare>
#include <string>
#include <vector>

#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

struct ScheduleSpec {
  std::string name;  // any case; PyTorch's class names serve too ("ScheduleInterleaved1F1B", "ZBVZeroBubble")
  int ranks = 1;
  int microbatches = 1;     // whole ones
  int stages_per_rank = 0;  // 0: what the schedule is made for: 1, or 2 if it takes several
  int sequence_slices = 1;  // of a microbatch

  auto operator<=>(const ScheduleSpec&) const = default;
};

// What the schedule was made for, if its generator has its name.
ScheduleSpec spec_of(const Schedule& schedule);

// The compute actions of the schedule. Throws UsageError, saying what to change, if the name is unknown or
// the schedule does not exist for these numbers.
Schedule make_schedule(const ScheduleSpec& spec);

// The names make_schedule knows, as users write them.
std::vector<std::string> schedule_names();

// The schedules that train: all but inference.
std::vector<std::string> training_schedule_names();

// With one stage per rank, is the schedule another one under this name: the same actions, or with more
// microbatches in flight for nothing? looped_bfs is gpipe, interleaved_zb is zb_h1, interleaved_1f1b is 1f1b.
bool repeats_with_one_stage(const std::string& name);

// A schedule that is named in the literature, and here is another one with an option (seq1f1b).
bool is_schedule_by_option(const std::string& name);

// The name that schedule_names() lists for any spelling of it; throws UsageError if there is none.
std::string canonical_schedule_name(const std::string& name);

}  // namespace pptrain::schedule
