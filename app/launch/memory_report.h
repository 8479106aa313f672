// What to say beside an allocation that failed.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "app/plan/plan.h"

namespace pptrain::app {

// What pptrain plan foretells of this rank's memory, by kind, and what was taken so far; `ranks_here` ranks
// share this process. Never throws: what cannot be told is left out.
std::string describe_memory(const Plan& plan, int rank, int ranks_here, at::Device device);

}  // namespace pptrain::app
