// Whether the ranks of a job fit: into the memory of their hosts, or of their GPUs. Asked before anything
// large is allocated, because the kernel kills a process that takes more than its host has, without a word.
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

// Bytes that a training rank will take on run.device, by its number in pp: what pptrain plan predicts.
std::vector<RankBytes> training_bytes(const Plan& plan);

// Of a process of pptrain on this machine, for the program and its libraries: what this one has taken so far,
// to 10 MB, so that the answers to a question are alike.
int64_t program_bytes();

// As if all ranks were to run here: on this host, as threads of one process that takes `program` bytes
// itself, or on GPUs such as the ones here; without any, on those that plans are modelled for. Nothing where
// the system does not tell what is available.
std::optional<MemoryFit> fit_here(const Plan& plan, int64_t program);

// What is wrong with the memory of this rank's host or GPU; of hosts the same text on all their ranks. ""
// where they fit, where run.force_memory is set, and where the system does not tell. Collective.
std::string find_shortage(comm::Communicator& world, const Plan& plan, c10::Device device);

}  // namespace pptrain::app
