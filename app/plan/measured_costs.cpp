#include "app/plan/measured_costs.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "models/flops.h"
#include "models/model_config.h"

namespace pptrain::app {

namespace {

using Json = nlohmann::json;
using config::JobConfig;

constexpr double microsecond = 1e-6;

void read_job(const Json& other, JobConfig& job) {
  const Json& model = other.at("model");
  config::ModelSection& m = job.model;
  m.arch = model.at("arch");
  m.num_hidden_layers = model.at("layers");
  m.hidden_size = model.at("hidden");
  m.intermediate_size = model.at("intermediate");
  m.num_attention_heads = model.at("heads");
  m.num_key_value_heads = model.at("kv_heads");
  m.head_dim = model.at("head_dim");
  m.vocab_size = model.at("vocab");
  m.tie_word_embeddings = model.at("tied");
  job.run.device = other.at("device") == "cpu" ? "cpu" : "cuda";
  job.run.threads = other.at("threads");
  config::DistributedSection& d = job.distributed;
  d.pp = other.at("pp");
  d.dp_replicate = other.at("dp_replicate");
  d.pp_schedule = other.at("schedule");
  d.pp_stages_per_rank = other.at("stages_per_rank");
  d.pp_split = {.text = "", .layers = other.at("layers_per_stage").get<std::vector<int64_t>>()};
  config::TrainSection& t = job.train;
  t.grad_accum_steps = other.at("microbatches");
  t.micro_batch_size = other.at("micro_batch_size");
  t.seq_len = other.at("seq_len");
  t.dtype = other.at("dtype");
  t.recompute = other.at("recompute");
  job.optimizer.post_validation = other.at("post_validation");
}

// Sum and count of the spans of one kind on one stage.
struct Mean {
  double sum = 0;
  int count = 0;
  void add(double value) {
    sum += value;
    ++count;
  }
  double value() const { return count > 0 ? sum / count : 0; }
};

struct Events {
  std::map<std::pair<int, std::string>, Mean> actions;       // by stage and category
  std::map<std::string, double> phases;                      // sums
  std::map<std::pair<int, std::string>, double> rank_kinds;  // sums by rank and category
};

Events read_events(const Json& events, const std::vector<int64_t>& steps) {
  Events result;
  for (const Json& event : events) {
    if (event.at("ph") != "X") continue;
    const std::string category = event.at("cat");
    const double seconds = event.at("dur").get<double>() * microsecond;
    const Json& args = event.at("args");
    if (std::ranges::find(steps, args.at("step").get<int64_t>()) == steps.end()) continue;
    const std::string kind = category == "phase" ? event.at("name").get<std::string>() : category;
    result.rank_kinds[{event.at("tid").get<int>(), kind}] += seconds;
    if (category == "phase") {
      result.phases[kind] += seconds;
    } else if (category != "wait" && category != "communication") {
      result.actions[{args.at("stage").get<int>(), category}].add(seconds);
    }
  }
  return result;
}

std::vector<models::MeasuredStage> measured_stages(const JobConfig& job, const Events& events) {
  const pipeline::LayerAssignment layers = pipeline::from_counts(job.distributed.pp_split.layers);
  std::vector<models::MeasuredStage> stages;
  for (int index = 0; index < static_cast<int>(layers.size()); ++index) {
    const auto mean = [&](const char* category) {
      const auto found = events.actions.find({index, category});
      return found == events.actions.end() ? 0.0 : found->second.value();
    };
    stages.push_back({.slice = models::stage_slice(layers, index),
                      .forward = mean("forward"),
                      .backward = mean("backward"),
                      .backward_input = mean("backward_input"),
                      .backward_weight = mean("backward_weight")});
  }
  return stages;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

TraceSummary summarise(const Json& trace) {
  TraceSummary summary;
  const Json& other = trace.at("otherData");
  if (other.at("format") != "pptrain trace 1") throw UsageError("its format is not \"pptrain trace 1\"");
  read_job(other, summary.job);
  std::vector<int64_t> steps;
  std::vector<double> times;
  for (const Json& step : other.at("steps")) {
    steps.push_back(step.at("step"));
    times.push_back(step.at("step_time_s"));
    for (const auto& [key, value] : step.items()) {
      if (key.starts_with("bubble")) summary.bubble[key] += value.get<double>();
    }
  }
  if (steps.empty()) throw UsageError("it has no steps");
  const auto count = static_cast<double>(steps.size());
  for (auto& [key, value] : summary.bubble) value /= count;
  summary.step_time = median(times);
  const Events events = read_events(trace.at("traceEvents"), steps);
  const config::DistributedSection& d = summary.job.distributed;
  const auto ranks = static_cast<double>(d.pp * d.dp_replicate);
  for (const auto& [name, sum] : events.phases) summary.phases[name] = sum / count / ranks;
  summary.by_kind.resize(static_cast<size_t>(ranks));
  for (const auto& [key, sum] : events.rank_kinds)
    summary.by_kind.at(static_cast<size_t>(key.first))[key.second] = sum / count;
  summary.stages = measured_stages(summary.job, events);
  return summary;
}

// Phases of a step that are a rank's own work besides the passes and the optimizer.
double overhead_of(const TraceSummary& trace) {
  double sum = 0;
  for (const char* phase : {"data", "zero gradients", "gradient norm"})
    sum += value_or_zero(trace.phases, phase);
  return sum;
}

// Seconds of the optimizer for one parameter, over all ranks.
double optimizer_of(const TraceSummary& trace, const models::ModelConfig& model) {
  int64_t parameters = 0;
  for (const models::MeasuredStage& stage : trace.stages)
    parameters += models::stage_size(model, stage.slice, /*bfloat16=*/true).parameters;
  return value_or_zero(trace.phases, "optimizer") * static_cast<double>(trace.job.distributed.pp) /
         static_cast<double>(parameters);
}

void check_same_model(const JobConfig& job, const JobConfig& of_trace, const std::string& path) {
  const auto check = [&](const char* what, const auto& ours, const auto& theirs) {
    if (ours == theirs) return;
    throw UsageError(fmt::format("{} is of a run with {} = {}, but the job has {}: trace a run of this job",
                                 path, what, theirs, ours));
  };
  check("model.arch", job.model.arch, of_trace.model.arch);
  check("hidden_size", job.model.hidden_size, of_trace.model.hidden_size);
  check("intermediate_size", job.model.intermediate_size, of_trace.model.intermediate_size);
  check("num_attention_heads", job.model.num_attention_heads, of_trace.model.num_attention_heads);
  check("num_key_value_heads", job.model.num_key_value_heads, of_trace.model.num_key_value_heads);
  check("head_dim", job.model.head_dim, of_trace.model.head_dim);
  check("vocab_size", job.model.vocab_size, of_trace.model.vocab_size);
  check("train.seq_len", job.train.seq_len, of_trace.train.seq_len);
  check("train.dtype", job.train.dtype, of_trace.train.dtype);
  check("run.device", job.run.device, of_trace.run.device);
  check("run.threads", job.run.threads, of_trace.run.threads);
}

}  // namespace

TraceSummary read_trace(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file)
    throw UsageError(
        fmt::format("{}: cannot be read; expected a trace.json of profile.trace", path.string()));
  try {
    return summarise(Json::parse(file));
  } catch (const Json::exception& error) {
    throw UsageError(
        fmt::format("{}: not a trace of pptrain (profile.trace): {}", path.string(), error.what()));
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: not a trace to take costs from: {}", path.string(), error.what()));
  }
}

CostSource measured_costs(const JobConfig& job, const std::string& trace_path) {
  const TraceSummary trace = read_trace(trace_path);
  check_same_model(job, trace.job, trace_path);
  const models::ModelConfig model = models::make_model_config(job.model, job.train.seq_len);
  const models::DeviceModel& device = default_device(job);
  const models::Measurement measured{
      .stages = trace.stages, .optimizer = optimizer_of(trace, model), .overhead = overhead_of(trace)};
  return {.device = device,
          .calibration = models::calibrate(model, workload_of(trace.job), device, measured),
          .description = "measured in " + trace_path};
}

}  // namespace pptrain::app
