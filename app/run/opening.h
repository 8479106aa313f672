// What a start of a run says of itself.
#pragma once

#include <string>
#include <vector>

#include "app/data/datasets.h"
#include "app/plan/run_context.h"
#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::app {

// As checkpoints and metrics.jsonl have it. `data`: the fingerprint of the training data.
checkpoint::Layout describe_layout(const Plan& plan, const std::string& data);

// Rank 0: the lines of the log before the first step.
void announce(const RunContext& context, const std::vector<OpenSource>& sources);

}  // namespace pptrain::app
