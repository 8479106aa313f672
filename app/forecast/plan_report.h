// A plan and its prediction, for people and for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "app/forecast/costs.h"
#include "app/forecast/prediction.h"
#include "app/plan/plan.h"
#include "parallel/schedule/render/render.h"

namespace pptrain::app {

// What a rank costs while it trains; 0: not given.
struct JobRates {
  double price = 0;  // of an hour
  double watts = 0;
};

// The step as a grid, its time, what the whole job takes, and where time and memory of each rank go. options:
// of the grid; no line of text is wider either.
std::string render_plan(const Plan& plan, const Prediction& prediction, const CostModel& costs,
                        const CostSource& source, schedule::TextOptions options, const JobRates& rates = {});

// Seconds, bytes and layers; each rank's busy, fill, steady, drain, barrier and optimizer_time make the step.
nlohmann::ordered_json plan_json(const Plan& plan, const Prediction& prediction, const CostModel& costs,
                                 const CostSource& source, const JobRates& rates = {});

// Bytes of one checkpoint's tensors, all stages together: fp32 weights and the optimizer's state.
int64_t checkpoint_bytes(const Plan& plan);

}  // namespace pptrain::app
