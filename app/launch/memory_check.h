// Whether the ranks of a job fit into the memory of their hosts: asked before anything large is allocated,
// because the kernel kills a process that takes more, without a word.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/plan/plan.h"
#include "parallel/comm/communicator.h"

namespace pptrain::app {

// Bytes of host memory that a training rank will take, by its number in pp: what pptrain plan predicts. Zeros
// where ranks compute on GPUs.
std::vector<int64_t> host_bytes(const Plan& plan);

// Of a process of pptrain on this machine, for the program and its libraries: what this one has taken so far,
// to 10 MB, so that the answers to a question are alike.
int64_t program_bytes();

// What is wrong where `ranks` ranks of one host need `needed` bytes together and `available` are left; ""
// where they fit.
std::string shortage(int64_t needed, int64_t available, int ranks);

// The same for the ranks of this host, the same text on all of them; "" where run.force_memory is set, where
// ranks compute on GPUs, and where the system does not tell. Collective.
std::string find_shortage(comm::Communicator& world, const Plan& plan);

}  // namespace pptrain::app
