// pptrain plan
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "app/job.h"
#include "app/pipeline_plan.h"
#include "core/base/error.h"
#include "core/io/atomic_file.h"
#include "models/flops.h"
#include "models/model_config.h"
#include "models/transformer_stage.h"
#include "parallel/schedule/csv.h"
#include "parallel/schedule/generators.h"
#include "parallel/schedule/render.h"
#include "parallel/schedule/simulate.h"

namespace pptrain::app {

namespace {

// Costs of each stage in modelled FLOPs; the cheapest stage's forward is 1.
schedule::Costs modelled_costs(const config::JobConfig& job) {
  const models::ModelConfig model = models::make_model_config(job.model, job.train.seq_len);
  const pipeline::LayerAssignment layers = stage_layers(job, model.layers);
  const models::Recompute recompute = models::make_recompute(job.train.recompute);
  std::vector<models::StageCost> stages;
  for (size_t i = 0; i < layers.size(); ++i) {
    stages.push_back(models::stage_cost(model, models::stage_slice(layers, static_cast<int>(i)),
                                        job.train.micro_batch_size, job.train.seq_len, recompute));
  }
  const double unit = std::ranges::min(stages, {}, &models::StageCost::forward).forward;
  schedule::Costs costs;
  for (const models::StageCost& s : stages) {
    costs.stages.push_back(
        {.forward = s.forward / unit, .backward_input = s.input / unit, .backward_weight = s.weight / unit});
  }
  return costs;
}

std::string text_plan(const config::JobConfig& job, const schedule::Schedule& compute, double uniform_bubble,
                      bool colour) {
  const schedule::Simulation simulation = schedule::simulate(compute, modelled_costs(job));
  std::string out = fmt::format(
      "{} on {} pipeline ranks, {} microbatches; times in forwards of the cheapest stage, by modelled "
      "FLOPs\n\n",
      job.distributed.pp_schedule, compute.ranks, compute.microbatches);
  out += schedule::render_text(compute, simulation, {.colour = colour});
  out += fmt::format(
      "\nbubble {:.1f} % of the step with these stages; {:.1f} % if all stages cost the same and B = 2 F\n",
      100 * simulation.bubble(), 100 * uniform_bubble);
  return out;
}

std::string json_plan(const config::JobConfig& job, const schedule::Schedule& lowered,
                      double uniform_bubble) {
  auto plan = nlohmann::ordered_json::parse(
      schedule::render_json(lowered, schedule::simulate(lowered, modelled_costs(job))));
  plan["uniform_bubble"] = uniform_bubble;
  return plan.dump(2) + '\n';
}

}  // namespace

int plan(const PlanArguments& arguments) {
  const config::JobConfig job = load_job(arguments);
  const schedule::Schedule lowered = training_schedule(job);
  const schedule::Schedule compute = training_compute(job);
  const double uniform_bubble = schedule::simulate(compute).bubble();
  std::string text;
  if (arguments.format == "csv") {
    text = schedule::write_csv(compute, schedule::CsvCells::stepped);
  } else if (arguments.format == "json") {
    text = json_plan(job, lowered, uniform_bubble);
  } else {
    const bool colour =
        arguments.output.empty() && isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
    text = text_plan(job, compute, uniform_bubble, colour);
  }
  if (arguments.output.empty()) {
    fmt::print("{}", text);
  } else {
    io::write_file_atomically(arguments.output, text);
  }
  return 0;
}

}  // namespace pptrain::app
