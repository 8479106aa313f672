// The picture that errors show: ranks x steps, with one cell marked.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// The cells around action `index` of `rank`, one row per rank and one column per place in the lists, the cell
// itself written >so<. An index past the end marks the empty place after the rank's last action.
std::string format_grid(const Schedule& schedule, int rank, size_t index);

// Throws Error: the schedule is unsound at this place of the rank's list, because of `why`, with the grid.
[[noreturn]] void refuse(const Schedule& schedule, int rank, size_t index, std::string_view why);

}  // namespace pptrain::schedule
