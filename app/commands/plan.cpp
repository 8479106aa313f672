// pptrain plan
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "app/commands/commands.h"
#include "app/plan/load_plan.h"
#include "app/plan/mesh_search.h"
#include "app/plan/mesh_search_report.h"
#include "app/plan/prediction.h"
#include "app/plan/search.h"
#include "app/plan/stage_recompute.h"
#include "app/trace/trace_file.h"
#include "core/base/error.h"
#include "core/io/atomic_file.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/render/csv.h"
#include "parallel/schedule/render/render.h"
#include "parallel/schedule/render/trace_names.h"

namespace pptrain::app {

namespace {

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
  std::string out = "rank   weights  gathered  gradients  optimizer  activations  buffers    total   (GB)\n";
  for (size_t r = 0; r < p.bytes.size(); ++r) {
    const RankBytes& b = p.bytes[r];
    out += fmt::format("{:>4}  {:>8.3f}  {:>8.3f}   {:>8.3f}   {:>8.3f}     {:>8.3f} {:>8.3f} {:>8.3f}\n", r,
                       in_gb(b.weights), in_gb(b.gathered), in_gb(b.gradients), in_gb(b.optimizer),
                       in_gb(b.activations), in_gb(b.buffers), in_gb(b.total()));
  }
  return out;
}

// What ranks exchange, with the links that it goes over.
std::string render_exchanges(const std::vector<ExchangeTime>& times, const Prediction& p) {
  if (times.empty()) return "";
  std::string out =
      "exchanges       total  waited for   (s a step, mean of the ranks; % of the step waited for)\n";
  for (const ExchangeTime& time : times) {
    out += fmt::format("{:<12} {:>8.4g}    {:>8.4g}   {:>5.1f} %\n", time.what, time.total, time.exposed,
                       100 * time.exposed / p.step_time);
  }
  return out + '\n';
}

std::string text_plan(const Plan& plan, const Prediction& p, const std::vector<ExchangeTime>& exchanges,
                      const CostSource& source, bool colour) {
  const schedule::Schedule& compute = plan.compute;
  std::string out =
      fmt::format("{}: pp = {}, pp_stages_per_rank = {}, layers per stage {}, recompute {}; costs {}\n",
                  plan.job.distributed.pp_schedule, compute.ranks, compute.stages_per_rank,
                  fmt::join(pipeline::layers_per_stage(plan.layers), "+"),
                  describe_recompute(plan.job.train.recompute), source.description);
  if (plan.mesh.world_size() > plan.mesh.pp)
    out += fmt::format("{} ranks; below, a pipeline rank stands for those of its stages\n",
                       plan.mesh.describe());
  out += '\n';
  out += schedule::render_text(compute, schedule::simulate(compute, p.costs),
                               {.colour = colour, .max_columns = grid_columns});
  out += fmt::format(
      "\nstep {:.4g} s, {:.0f} tokens/s; bubble {:.1f} % of the step ({:.1f} % of the pipeline alone; "
      "{:.1f} % if all stages cost the same and B = 2 F)\n\n",
      p.step_time, p.tokens_per_s, 100 * p.bubble(), 100 * p.pipeline.bubble(),
      100 * schedule::simulate(compute).bubble());
  return out + render_times(p) + '\n' + render_exchanges(exchanges, p) + render_bytes(p);
}

nlohmann::ordered_json stages_json(const Plan& plan, const schedule::Costs& costs) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (int stage = 0; stage < plan.schedule.stages(); ++stage) {
    const auto [first, end] = plan.layers[stage];
    const auto seconds = [&](schedule::ActionKind kind) {
      return schedule::duration(costs.stages[stage], kind);
    };
    stages.push_back({{"stage", stage},
                      {"rank", plan.schedule.rank_of(stage)},
                      {"first_layer", first},
                      {"layers", end - first},
                      {"recompute", models::to_string(stage_recompute(plan.job.train.recompute, stage))},
                      {"forward", seconds(schedule::ActionKind::forward)},
                      {"backward", seconds(schedule::ActionKind::backward)},
                      {"backward_input", seconds(schedule::ActionKind::backward_input)},
                      {"backward_weight", seconds(schedule::ActionKind::backward_weight)}});
  }
  return stages;
}

// Seconds, bytes and layers; each rank's busy, fill, steady, drain, barrier and optimizer_time make the step.
std::string json_plan(const Plan& plan, const Prediction& p, const std::vector<ExchangeTime>& exchanges,
                      const CostSource& source, bool actions) {
  nlohmann::ordered_json json = schedule::summary_json(plan.schedule, p.pipeline);
  json["uniform_bubble"] = schedule::simulate(plan.compute).bubble();
  json["costs"] = source.description;
  json["transfer_time"] = p.costs.latency.front();
  json["predicted_step_time"] = p.step_time;
  json["predicted_tokens_per_s"] = p.tokens_per_s;
  json["predicted_bubble"] = p.bubble();
  for (size_t r = 0; r < p.bytes.size(); ++r) {
    auto& rank = json["per_rank"][r];
    const RankBytes& bytes = p.bytes[r];
    rank["barrier"] = p.pipeline.ranks[r].barrier + p.barrier[r];
    rank["optimizer_time"] = p.optimizer_time[r];
    for (const auto& [kind, count] : bytes.kinds()) rank["bytes"][kind] = count;
    rank["bytes"]["total"] = bytes.total();
  }
  for (const ExchangeTime& time : exchanges)
    json["exchanges"][time.what] = {{"total", time.total}, {"exposed", time.exposed}};
  for (int i = 0; i < mesh::axis_count; ++i) {
    const auto axis = static_cast<mesh::Axis>(i);
    json["mesh"][mesh::name(axis)] = plan.mesh.size(axis);
  }
  json["mesh"]["ep"] = plan.mesh.ep;
  json["per_stage"] = stages_json(plan, p.costs);
  return actions ? schedule::render_json_with_actions(json, plan.schedule, p.pipeline)
                 : schedule::render_json(json);
}

// The schedule as a generator or a file has it: with overlapped pairs.
schedule::Schedule listed(const config::JobConfig& job) {
  const std::string& name = job.distributed.pp_schedule;
  return schedule::compute_only(is_schedule_file(name) ? schedule::load_schedule(name)
                                                       : schedule::make_schedule(schedule_spec(job)));
}

std::string render(const PlanArguments& arguments, const Plan& plan, const CostSource& source) {
  if (arguments.format == "csv") return schedule::write_csv(listed(plan.job), schedule::CsvCells::stepped);
  const models::CostModel costs = make_cost_model(plan, source);
  const Prediction p = predict(plan, costs);
  const auto exchanges = [&] { return exchange_times(plan, costs, p); };
  if (arguments.format == "json") return json_plan(plan, p, exchanges(), source, arguments.actions);
  if (arguments.format == "svg") return schedule::render_svg(plan.schedule, p.pipeline);
  if (arguments.format == "trace") return schedule::render_trace(plan.schedule, p.pipeline);
  const bool colour =
      arguments.output.empty() && isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
  return text_plan(plan, p, exchanges(), source, colour);
}

double budget_of(const PlanArguments& arguments, const PlanBase& base, const CostSource& source) {
  return arguments.memory_gb > 0 ? arguments.memory_gb * 1e9 : memory_budget(base, source);
}

std::string search_plan(const PlanArguments& arguments, const PlanBase& base, const CostSource& source) {
  const double budget = budget_of(arguments, base, source);
  if (arguments.world > 0) {
    const MeshSearchOptions options{.world = static_cast<int>(arguments.world), .budget = budget};
    const MeshSearchResult found = search_meshes(base, source, options);
    return arguments.format == "json" ? meshes_json(found, base, source, options)
                                      : render_meshes(found, base, source, options);
  }
  const std::vector<Candidate> found = search(base, source, {.microbatches = true, .budget = budget});
  if (arguments.format == "json") return ranking_json(found, budget);
  return fmt::format("costs {}\n", source.description) + render_ranking(found, budget);
}

void check_arguments(const PlanArguments& arguments) {
  if (arguments.actions && (arguments.format != "json" || arguments.search))
    throw UsageError("--actions needs --format json, and no --search");
  if (arguments.search && arguments.format != "text" && arguments.format != "json")
    throw UsageError(fmt::format("--search prints text or json, not {}", arguments.format));
  if (!arguments.search && arguments.memory_gb > 0) throw UsageError("--memory-gb needs --search");
}

// The plan of the run that wrote the trace, of the job's model.
Plan plan_of(const TracedRun& run, config::JobConfig job) {
  job.distributed = {};
  job.distributed.pp = run.pp;
  job.distributed.dp_replicate = run.dp_replicate;
  job.distributed.dp_shard = run.dp_shard;
  job.distributed.cp = run.cp;
  job.distributed.cp_kind = run.cp_kind;
  job.distributed.tp = run.tp;
  job.distributed.ep = run.ep;
  job.distributed.reshard_after_forward = run.reshard_after_forward;
  job.distributed.reduce_gradients = run.reduce_gradients;
  job.distributed.pp_schedule = run.schedule;
  job.distributed.pp_stages_per_rank = run.stages_per_rank;
  job.distributed.pp_split = {.text = "", .layers = run.layers_per_stage};
  job.train.seq_len = run.seq_len;
  job.train.micro_batch_size = run.micro_batch_size;
  job.train.grad_accum_steps = run.microbatches;
  job.train.dtype = run.dtype;
  job.train.recompute = run.recompute;
  job.optimizer.post_validation = run.post_validation;
  return make_plan(job);
}

// The run that wrote the trace, predicted with these costs, beside what it measured.
std::string compare(const Plan& of_job, const std::string& trace_path, const CostSource& source) {
  const TraceSummary trace = read_trace(trace_path);
  const Plan plan = plan_of(trace.run, of_job.job);
  const Prediction p = predict(plan, source);
  std::string out =
      fmt::format("{} on {} ranks, {} microbatches; costs {}\n\n", plan.job.distributed.pp_schedule,
                  plan.compute.ranks, plan.compute.microbatches, source.description);
  out += fmt::format("{:<24} {:>12} {:>12} {:>8}\n", "", "predicted", "measured", "ratio");
  const auto row = [&](const std::string& what, double predicted, double measured) {
    out += fmt::format("{:<24} {:>12.6g} {:>12.6g} {:>8}\n", what, predicted, measured,
                       measured > 0 ? fmt::format("{:.3f}", predicted / measured) : "");
  };
  row("step, s", p.step_time, trace.step_time);
  row("bubble, of the step", p.bubble(), value_or_zero(trace.bubble, "bubble"));
  for (int rank = 0; rank < plan.compute.ranks; ++rank) {
    std::map<std::string, double> predicted;
    for (const schedule::Action& action : plan.compute.actions[rank]) {
      schedule::for_each_part(action, [&](const schedule::Action& part) {
        predicted[schedule::trace_category(part.kind)] +=
            schedule::duration(p.costs.stages[part.stage], part.kind);
      });
    }
    predicted["optimizer"] = p.optimizer_time[rank];
    for (const auto& [kind, seconds] : predicted) {
      const auto& measured =
          trace.ranks.at(static_cast<size_t>(rank * (plan.mesh.world_size() / plan.mesh.pp)));
      row(fmt::format("rank {} {}, s", rank, kind), seconds, value_or_zero(measured, kind));
    }
  }
  return out;
}

}  // namespace

int plan(const PlanArguments& arguments) {
  check_arguments(arguments);
  const auto source = [&](const PlanBase& base) {
    return make_cost_source(base, arguments.costs.empty() ? base.job.distributed.pp_costs : arguments.costs);
  };
  const LoadOptions options{.world = arguments.world, .needs_files = false};
  std::string text;
  if (arguments.search) {
    const PlanBase base = load_plan_base(arguments.config, arguments.set, options);
    text = search_plan(arguments, base, source(base));
  } else {
    const Plan plan = load_plan(arguments.config, arguments.set, options);
    const CostSource costs = arguments.costs.empty() && plan.costs ? *plan.costs : source(plan);
    text =
        arguments.compare.empty() ? render(arguments, plan, costs) : compare(plan, arguments.compare, costs);
  }
  if (arguments.output.empty()) {
    fmt::print("{}", text);
  } else {
    io::write_file_atomically(arguments.output, text);
  }
  return 0;
}

}  // namespace pptrain::app
