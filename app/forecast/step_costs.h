// Costs of passes over microbatches that differ in size, and the resulting times of steps on a job's data.
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

// Do passes wait for the same passes of other data ranks: for experts' rows, weights, or sums of gradients?
bool data_ranks_in_step(const PlanBase& base);

// In femtoseconds, or in coarser ticks if a step takes long: a part for each microbatch, one for each token
// and one for each squared length. They are fitted to CostModel: one row and two of seq_len, and one of half
// as many tokens. Modelled for the device that distributed.pp_costs names, else for the job's; nothing is
// measured, so that all ranks agree.
schedule::SizedCosts balance_costs(const Plan& plan);
std::string fingerprint(const schedule::SizedCosts& costs);

// Makes the loader divide steps by the end of the plan's schedule (data.balance = "schedule").
void balance_schedule(const Plan& plan, data::LoaderOptions& options);

// Mean seconds of the first steps of the data, with data.balance = "microbatches" and "schedule". `full`: the
// same job with full microbatches; its pipeline is shortened by what balance_costs() say. Nothing if lengths
// are not exact, or if the data must be tokenized first or cannot be read here.
std::optional<std::pair<double, double>> forecast_lengths(const Plan& plan, const Prediction& full);

}  // namespace pptrain::app
