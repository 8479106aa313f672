// What the kernels of a rank took in the traced steps, as it stands in trace.json (README.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/kernels/kernel_times.h"
#include "parallel/comm/communicator.h"

namespace pptrain::app {

// A list of objects, the longest first. steps: that `times` are of; the numbers are of one step.
std::string kernel_shares_json(const kernels::KernelTimes& times, int64_t steps);

// kernel_shares_json of every rank, by rank, on rank 0; nothing elsewhere. Collective.
std::vector<std::string> gather_kernel_shares(comm::Communicator& world, const kernels::KernelTimes& times,
                                              int64_t steps);

}  // namespace pptrain::app
