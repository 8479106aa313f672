// Schedules as text, in the form of PyTorch's pipelining: one row per rank, comma-separated actions, an empty
// cell for an idle step; compute alone, or with communication.
#pragma once

#include <filesystem>
#include <string>

#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// Reads the text; sizes and placement follow from the actions. `name` begins each message. Throws UsageError
// ("name:ROW:COLUMN: ...", counted from 1, columns in cells) on what cannot be read, and if the stages lie
// neither in loop nor in V placement. It does not prove the schedule: see load_schedule.
Schedule parse_csv(const std::string& text, const std::string& name = "schedule");

// Reads and validates a file, whose microbatches are sequence slices if a microbatch has several; every
// failure is a UsageError, an unsound schedule's with the grid.
Schedule load_schedule(const std::filesystem::path& path, int sequence_slices = 1);

// Each rank's list without gaps.
std::string write_csv(const Schedule& schedule);
// A column is a step in which every compute action takes one unit; idle steps are empty cells. Throws Error
// for schedules with communication.
std::string write_stepped_csv(const Schedule& schedule);

}  // namespace pptrain::schedule
