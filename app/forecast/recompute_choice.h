// How much each stage of a plan recomputes where memory binds.
#pragma once

#include <string>
#include <vector>

#include "app/forecast/costs.h"
#include "app/forecast/prediction.h"
#include "app/plan/plan.h"

namespace pptrain::app {

struct RecomputeChoice {
  std::vector<std::string> recompute;  // for train.recompute
  Prediction prediction;               // of the plan with it
};

// Raises what stages recompute, on the ranks that hold more than `budget` bytes alone: of such a rank's
// stages the one that recomputes least, and of those the one whose next step leaves the rank with the fewest
// bytes; until every rank fits, or nothing is left to recompute. So the ranks that hold few microbatches (the
// last ones of 1f1b) go on keeping what they have room for. `plan`: recomputes nothing or a little;
// `predicted`: its prediction.
RecomputeChoice choose_recompute(Plan plan, Prediction predicted, const CostSource& source, double budget);
// The same with dry runs of `dry_runs`.
RecomputeChoice choose_recompute(Plan plan, Prediction predicted, const CostSource& source, double budget,
                                 FootprintCache& dry_runs);

}  // namespace pptrain::app
