// pptrain plan
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "app/commands/commands.h"
#include "app/plan/job.h"
#include "app/plan/measured_costs.h"
#include "app/plan/pipeline_plan.h"
#include "app/plan/prediction.h"
#include "app/plan/search.h"
#include "core/base/error.h"
#include "core/io/atomic_file.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/render/csv.h"
#include "parallel/schedule/render/render.h"
#include "parallel/schedule/render/trace_names.h"

namespace pptrain::app {

namespace {

using config::JobConfig;

constexpr int grid_columns = 160;  // of the text; the other formats have all

double in_gb(int64_t bytes) {
  return static_cast<double>(bytes) / 1e9;
}

// Where a rank's time goes, in per cent of the step.
std::string render_times(const Prediction& p) {
  std::string out =
      "rank     busy     fill  imbalance  drain  barrier  optimizer   (% of the step; of these, transfer)\n";
  for (size_t r = 0; r < p.barrier.size(); ++r) {
    const schedule::RankTime& t = p.pipeline.ranks[r];
    const auto percent = [&](double seconds) { return 100 * seconds / p.step_time; };
    out += fmt::format(
        "{:>4}   {:>6.1f}   {:>6.1f}     {:>6.1f} {:>6.1f}   {:>6.1f}     {:>6.1f}   {:>6.1f}\n", r,
        percent(t.busy), percent(t.fill), percent(t.steady), percent(t.drain),
        percent(t.barrier + p.barrier[r]), percent(p.optimizer_time[r]), percent(t.wait_for_transfer));
  }
  return out;
}

std::string render_bytes(const Prediction& p) {
  std::string out = "rank   weights  gradients  optimizer  activations  buffers    total   (GB)\n";
  for (size_t r = 0; r < p.bytes.size(); ++r) {
    const RankBytes& b = p.bytes[r];
    out += fmt::format("{:>4}  {:>8.3f}   {:>8.3f}   {:>8.3f}     {:>8.3f} {:>8.3f} {:>8.3f}\n", r,
                       in_gb(b.weights), in_gb(b.gradients), in_gb(b.optimizer), in_gb(b.activations),
                       in_gb(b.buffers), in_gb(b.total()));
  }
  return out;
}

std::string text_plan(const JobConfig& job, const Prediction& p, const CostSource& source, bool colour) {
  std::string out = fmt::format("{}: pp = {}, pp_stages_per_rank = {}, layers per stage {}; costs {}\n\n",
                                job.distributed.pp_schedule, p.compute.ranks, p.compute.stages_per_rank,
                                fmt::join(pipeline::layers_per_stage(p.layers), "+"), source.description);
  out += schedule::render_text(p.compute, schedule::simulate(p.compute, p.costs),
                               {.colour = colour, .max_columns = grid_columns});
  out += fmt::format(
      "\nstep {:.4g} s, {:.0f} tokens/s; bubble {:.1f} % of the step ({:.1f} % of the pipeline alone; {:.1f} "
      "% if "
      "all stages cost the same and B = 2 F)\n\n",
      p.step_time, p.tokens_per_s, 100 * p.bubble(), 100 * p.pipeline.bubble(),
      100 * schedule::simulate(p.compute).bubble());
  return out + render_times(p) + '\n' + render_bytes(p);
}

nlohmann::ordered_json stages_json(const Prediction& p) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (int stage = 0; stage < p.lowered.stages(); ++stage) {
    const auto [first, end] = p.layers[stage];
    const auto seconds = [&](schedule::ActionKind kind) {
      return schedule::duration(p.costs.stages[stage], kind);
    };
    stages.push_back({{"stage", stage},
                      {"rank", p.lowered.rank_of(stage)},
                      {"first_layer", first},
                      {"layers", end - first},
                      {"forward", seconds(schedule::ActionKind::forward)},
                      {"backward", seconds(schedule::ActionKind::backward)},
                      {"backward_input", seconds(schedule::ActionKind::backward_input)},
                      {"backward_weight", seconds(schedule::ActionKind::backward_weight)}});
  }
  return stages;
}

// Seconds, bytes and layers; each rank's busy, fill, steady, drain, barrier and optimizer_time make the step.
std::string json_plan(const Prediction& p, const CostSource& source, bool actions) {
  nlohmann::ordered_json plan = schedule::summary_json(p.lowered, p.pipeline);
  plan["uniform_bubble"] = schedule::simulate(p.compute).bubble();
  plan["costs"] = source.description;
  plan["transfer_time"] = p.costs.latency.front();
  plan["predicted_step_time"] = p.step_time;
  plan["predicted_tokens_per_s"] = p.tokens_per_s;
  plan["predicted_bubble"] = p.bubble();
  for (size_t r = 0; r < p.bytes.size(); ++r) {
    auto& rank = plan["per_rank"][r];
    const RankBytes& bytes = p.bytes[r];
    rank["barrier"] = p.pipeline.ranks[r].barrier + p.barrier[r];
    rank["optimizer_time"] = p.optimizer_time[r];
    rank["bytes"] = {{"weights", bytes.weights},     {"gradients", bytes.gradients},
                     {"optimizer", bytes.optimizer}, {"activations", bytes.activations},
                     {"buffers", bytes.buffers},     {"total", bytes.total()}};
  }
  plan["per_stage"] = stages_json(p);
  return actions ? schedule::render_json_with_actions(plan, p.lowered, p.pipeline)
                 : schedule::render_json(plan);
}

std::string render(const PlanArguments& arguments, const JobConfig& job, const CostSource& source) {
  if (arguments.format == "csv") {  // as a generator or a file has it: with overlapped pairs
    return schedule::write_csv(schedule::compute_only(training_compute(job)), schedule::CsvCells::stepped);
  }
  const Prediction p = predict(job, source);
  if (arguments.format == "json") return json_plan(p, source, arguments.actions);
  if (arguments.format == "svg") return schedule::render_svg(p.lowered, p.pipeline);
  if (arguments.format == "trace") return schedule::render_trace(p.lowered, p.pipeline);
  const bool colour =
      arguments.output.empty() && isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
  return text_plan(job, p, source, colour);
}

std::string search_plan(const JobConfig& job, const CostSource& source) {
  const double budget = memory_budget(job, source);
  const std::vector<Candidate> found = search(job, source, {.microbatches = true, .budget = budget});
  return fmt::format("costs {}\n", source.description) + render_ranking(found, budget);
}

// The run that wrote the trace, predicted with these costs, beside what it measured.
std::string compare(const JobConfig& job, const std::string& trace_path, const CostSource& source) {
  const TraceSummary trace = read_trace(trace_path);
  JobConfig traced = job;
  traced.distributed = trace.job.distributed;
  traced.train = trace.job.train;
  traced.optimizer.post_validation = trace.job.optimizer.post_validation;
  const Prediction p = predict(traced, source);
  std::string out =
      fmt::format("{} on {} ranks, {} microbatches; costs {}\n\n", traced.distributed.pp_schedule,
                  p.compute.ranks, p.compute.microbatches, source.description);
  out += fmt::format("{:<24} {:>12} {:>12} {:>8}\n", "", "predicted", "measured", "ratio");
  const auto row = [&](const std::string& what, double predicted, double measured) {
    out += fmt::format("{:<24} {:>12.6g} {:>12.6g} {:>8}\n", what, predicted, measured,
                       measured > 0 ? fmt::format("{:.3f}", predicted / measured) : "");
  };
  row("step, s", p.step_time, trace.step_time);
  row("bubble, of the step", p.bubble(), value_or_zero(trace.bubble, "bubble"));
  for (int rank = 0; rank < p.compute.ranks; ++rank) {
    std::map<std::string, double> predicted;
    for (const schedule::Action& action : p.compute.actions[rank]) {
      schedule::for_each_part(action, [&](const schedule::Action& part) {
        predicted[schedule::trace_category(part.kind)] +=
            schedule::duration(p.costs.stages[part.stage], part.kind);
      });
    }
    predicted["optimizer"] = p.optimizer_time[rank];
    for (const auto& [kind, seconds] : predicted) {
      const auto& measured = trace.by_kind.at(static_cast<size_t>(rank * traced.distributed.dp_replicate));
      row(fmt::format("rank {} {}, s", rank, kind), seconds, value_or_zero(measured, kind));
    }
  }
  return out;
}

}  // namespace

int plan(const PlanArguments& arguments) {
  if (arguments.actions && arguments.format != "json") {
    throw UsageError("--actions needs --format json");
  }
  const JobConfig job = arguments.search ? load_open_job(arguments) : load_job(arguments);
  const std::string costs = !arguments.costs.empty() ? arguments.costs : job.distributed.pp_costs;
  const CostSource source = make_cost_source(job, costs);
  const std::string text = arguments.search             ? search_plan(job, source)
                           : !arguments.compare.empty() ? compare(job, arguments.compare, source)
                                                        : render(arguments, job, source);
  if (arguments.output.empty()) {
    fmt::print("{}", text);
  } else {
    io::write_file_atomically(arguments.output, text);
  }
  return 0;
}

}  // namespace pptrain::app
