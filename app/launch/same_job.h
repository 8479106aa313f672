// Whether all ranks run the same program, on the same job and the same data: each process reads its own.
#pragma once

#include <string>

#include "app/plan/plan.h"
#include "parallel/comm/communicator.h"

namespace pptrain::app {

// What ranks must agree on beyond the plan: the program itself, what the data files hold, and of
// model.init = "hf" the weights' files. Throws Error where one of the files cannot be read.
Identity files_identity(const Plan& plan);

// What of `own` is other than on rank 0: the first few names, each with this rank's value and rank 0's, after
// the names of both hosts. "" where all is equal, as it always is on rank 0. A hash travels; names and values
// do only where some rank's hash is another. Collective.
std::string difference_from_rank_0(comm::Communicator& world, const Identity& own);

// The two above: the fault of this rank, or "". What keeps this rank from reading its files is a fault too.
// Collective.
std::string find_other_job(comm::Communicator& world, const Plan& plan);

}  // namespace pptrain::app
