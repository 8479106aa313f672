// What a job's keys say of how its ranks share parameters out, where a key is not the answer itself.
#pragma once

#include "app/plan/plan.h"
#include "models/seams.h"
#include "models/sharding.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::app {

// distributed.reshard_after_forward; unset, weights stay gathered under a pipeline, since many microbatches
// use them, and are freed after each pass without one.
bool reshards_after_forward(const config::DistributedSection& distributed);

models::ContextKind context_kind(const config::DistributedSection& distributed);

models::Sharding sharding_of(const PlanBase& base);

// What lowering puts into the lists for that.
schedule::LowerOptions lower_options(const PlanBase& base);

}  // namespace pptrain::app
