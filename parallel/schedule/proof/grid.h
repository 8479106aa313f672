// The picture that errors show: ranks x steps, with one cell marked.
#pragma once

#include <cstddef>
#include <string>

#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// The cells around action `index` of `rank`, one row per rank and one column per place in the lists, the cell
// itself written >so<. An index past the end marks the empty place after the rank's last action.
std::string format_grid(const Schedule& schedule, int rank, size_t index);

}  // namespace pptrain::schedule
