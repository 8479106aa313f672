// Turns texts into token files before anything else is done with a job's data.
#pragma once

#include <functional>

#include "app/data/datasets.h"
#include "app/plan/run_context.h"
#include "parallel/comm/communicator.h"

namespace pptrain::app {

// The caches of the wanted tokenized streams, on every rank. Missing ones are made: by rank 0, on all cores,
// and then by one rank of each host that does not see rank 0's. The others wait over `disk`
// (checkpoint::disk_communicator), which connects all ranks. The rank that makes them calls `stopped` now and
// then. If a rank fails, all throw the same: the first such rank's Error (a UsageError as CommonFault);
// StoppedAtStart if one was stopped; Error if ranks got different tokens. Collective.
TokenFiles make_token_files(const RunContext& context, comm::Communicator& disk, Wanted wanted,
                            const std::function<bool()>& stopped);

}  // namespace pptrain::app
