// Texts become token files before anything else is done with a job's data.
#pragma once

#include <functional>

#include "app/data/datasets.h"
#include "app/plan/run_context.h"
#include "parallel/comm/communicator.h"

namespace pptrain::app {

// The caches of the tokenized streams that are wanted, on every rank. What is missing is made: by rank 0, on
// all cores, and then by one rank of each host that does not see what rank 0 made. The others wait, over
// `patient` (checkpoint::patient), which is of all ranks. The rank that makes them asks `stopped` now and
// then. Where a rank fails all throw the same: what the first such rank threw, as an Error or, of a
// UsageError, a CommonFault; StoppedAtStart where one was stopped; Error where ranks came to other tokens.
// Collective.
TokenFiles make_token_files(const RunContext& context, comm::Communicator& patient, Wanted wanted,
                            const std::function<bool()>& stopped);

}  // namespace pptrain::app
