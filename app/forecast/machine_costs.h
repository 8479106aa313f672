// Costs of a job's passes as the CPU of this machine takes for them now.
#pragma once

#include "app/forecast/costs.h"

namespace pptrain::app {

// Runs passes of one block of each kind and of the head, and steps of the optimizer, at the job's sizes and
// with run.threads threads, and scales the model of a CPU to them: as many ranks at once as the job has and
// this machine has cores for, since they share its memory. Long microbatches and rows are cut. Takes a second
// or two; a model of which a block and the head have no room or take longer is left as modelled, and the
// description says so. Throws UsageError unless run.device is "cpu".
CostSource measure_machine(const PlanBase& base);

}  // namespace pptrain::app
