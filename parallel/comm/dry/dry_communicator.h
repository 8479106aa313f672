// A group of ranks that do not exist: collectives of a dry run, which record what they would send.
#pragma once

#include <memory>

#include "core/kernels/cost.h"
#include "parallel/comm/communicator.h"

namespace pptrain::comm {

// Rank `rank` of `size`. Operations on tensors of the meta device are complete at once; each adds what this
// rank would send to the DryRun of its thread (kernels/dry_run.h), as traffic of `wire`. Throws Error for
// tensors that have memory: there is no rank to exchange values with.
std::unique_ptr<Communicator> make_dry(kernels::Wire wire, int rank, int size);

}  // namespace pptrain::comm
