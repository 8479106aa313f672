// How many ranks a command runs.
#pragma once

#include <cstdint>

#include "app/commands/commands.h"

namespace pptrain::app {

// The ranks that the launcher has started, or that --world says; 0 where neither does. Throws UsageError
// where they contradict each other.
int64_t world_of(const JobArguments& arguments);

// From here on what is logged goes to standard error, of rank 0 alone but for warnings: standard output is
// for results.
void log_to_stderr();

}  // namespace pptrain::app
