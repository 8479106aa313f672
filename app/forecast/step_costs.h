// What passes take of microbatches that differ in size, and what follows for the steps of a job's data.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "app/forecast/prediction.h"
#include "app/plan/plan.h"
#include "parallel/schedule/cost/step_clock.h"

namespace pptrain::data {
struct LoaderOptions;
}

namespace pptrain::app {

// In femtoseconds: a part for each microbatch, one for each token and one for each squared length, such that
// one row and two of seq_len, and one of half as many tokens, take what CostModel says. Modelled for the
// device that distributed.pp_costs names, else for the job's: nothing measured, so that all ranks have the
// same.
schedule::SizedCosts balance_costs(const Plan& plan);
std::string fingerprint(const schedule::SizedCosts& costs);

// Steps are to be divided by the end of the plan's schedule (data.balance = "schedule").
void balance_schedule(const Plan& plan, data::LoaderOptions& options);

// Mean seconds of the first steps of the data, with data.balance = "microbatches" and "schedule".
// `full`: of the same job with full microbatches; its pipeline is shorter by what balance_costs() say.
// Nothing where lengths are not exact, or the data have to be made tokens first or cannot be read here.
std::optional<std::pair<double, double>> forecast_lengths(const Plan& plan, const Prediction& full);

}  // namespace pptrain::app
