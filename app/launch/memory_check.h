// Whether the ranks of a job fit into the memory of their hosts or GPUs. Checked before large allocations,
// because the kernel kills a process that takes more than its host has, without a message.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/forecast/memory_fit.h"
#include "app/plan/plan.h"
#include "parallel/comm/communicator.h"

namespace pptrain::app {

// Bytes that a training rank will take on run.device, by its pp coordinate, as pptrain plan predicts.
std::vector<RankBytes> training_bytes(const Plan& plan);

// Bytes of a pptrain process on this machine for the program and its libraries: what this process has taken
// so far, rounded to 10 MB so that repeated answers are equal.
int64_t program_bytes();

// As if all ranks ran here: on this host, as threads of one process that takes `program` bytes itself, or on
// GPUs such as the ones here; if there are none, on those that plans are modelled for. Nothing if the system
// does not tell the available memory.
std::optional<MemoryFit> fit_here(const Plan& plan, int64_t program);

// Why the memory of this rank's host or GPU does not suffice; all ranks of a host get the same text. "" if it
// suffices, if run.force_memory is set, or if the system does not tell. Takes a GPU's memory from the driver,
// for later tensors on the current stream. Collective.
std::string find_shortage(comm::Communicator& world, const Plan& plan, c10::Device device);

}  // namespace pptrain::app
