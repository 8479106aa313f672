// Do all ranks run the same program, on the same job and the same data? Each process reads its own.
#pragma once

#include <string>

#include "app/plan/plan.h"
#include "parallel/comm/communicator.h"

namespace pptrain::app {

// What ranks must agree on in addition to the plan: the program itself, the contents of the data files, and,
// with model.init = "hf", the weights' files. Throws Error if one of the files cannot be read.
Identity files_identity(const Plan& plan);

// The values of `own` that differ from rank 0's: the first few names, each with both values, after the names
// of both hosts. "" if all are equal, as always on rank 0. Ranks exchange a hash; they exchange names and
// values only if some rank's hash differs. Collective.
std::string difference_from_rank_0(comm::Communicator& world, const Identity& own);

// The two above: the fault of this rank, or "". A failure to read this rank's files is a fault too.
// Collective.
std::string find_other_job(comm::Communicator& world, const Plan& plan);

}  // namespace pptrain::app
