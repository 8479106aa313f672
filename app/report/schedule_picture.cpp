#include "app/report/schedule_picture.h"

#include <spdlog/fmt/fmt.h>

#include <exception>
#include <system_error>

#include "app/forecast/prediction.h"
#include "app/plan/plan.h"
#include "app/trace/traced_step.h"
#include "core/base/error.h"
#include "parallel/schedule/render/render.h"

namespace pptrain::app {

namespace fs = std::filesystem;

namespace {

constexpr size_t most_actions = 4000;  // about a megabyte of picture

SchedulePicture draw_plan(const config::JobConfig& job) {
  const Plan plan = make_plan(job);
  size_t actions = 0;
  for (const auto& list : plan.compute.actions) actions += list.size();
  if (actions > most_actions)
    throw UsageError(
        fmt::format("a step has more than {} passes; see pptrain plan --format svg", most_actions));
  const CostSource costs = make_cost_source(plan, "");
  const Prediction prediction = predict(plan, costs);
  return {
      schedule::render_svg(plan.schedule, prediction.pipeline, /*seconds=*/true),
      fmt::format("A step as planned from job.toml, with costs {}. With profile.trace = true a run leaves "
                  "the trace of steps as they ran.",
                  costs.description)};
}

}  // namespace

SchedulePicture draw_schedule(const RunData& run) {
  std::string problem;
  std::error_code error;
  if (const fs::path trace = run.folder / "trace.json"; fs::exists(trace, error)) {
    try {
      const TracedStep step = read_traced_step(trace, most_actions);
      return {schedule::render_svg(step.schedule, step.times, /*seconds=*/true),
              fmt::format("Step {} as it ran, of trace.json: the passes, on rank 0's clock.", step.step)};
    } catch (const std::exception& fault) {
      problem = fmt::format("No picture of trace.json: {}. ", fault.what());
    }
  }
  if (!run.job) return {"", fmt::format("{}No picture of the schedule: {}.", problem, run.job_problem)};
  try {
    SchedulePicture picture = draw_plan(*run.job);
    picture.caption = problem + picture.caption;
    return picture;
  } catch (const std::exception& fault) {
    return {"", fmt::format("{}No picture of the plan: {}.", problem, fault.what())};
  }
}

}  // namespace pptrain::app
