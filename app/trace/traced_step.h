// One step of a trace.json as a schedule with its times, for pictures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "parallel/schedule/cost/simulate.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::app {

struct TracedStep {
  int64_t step = 0;
  // Compute actions alone, in the order in which they ran, of the first replica; the two of an overlapped
  // pair stand apart.
  schedule::Schedule schedule;
  // Seconds from the first action's start to the last one's end. Idle time is not split.
  schedule::Simulation times;
};

// The last traced step. Throws UsageError that names the file where it is no trace of pptrain, or the step
// has more than `most_actions`.
TracedStep read_traced_step(const std::filesystem::path& path, size_t most_actions);

}  // namespace pptrain::app
