#include "app/forecast/costs.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string_view>
#include <utility>

#include "app/plan/plan.h"
#include "app/trace/trace_file.h"
#include "core/attention/gpu.h"
#include "core/base/error.h"
#include "core/config/differences.h"
#include "core/metrics/peak_flops.h"
#include "models/flops.h"
#include "models/stage_slice.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/render/render.h"

namespace pptrain::app {

std::string why_no_attention(const config::JobConfig& job, const models::ModelConfig& model) {
  return attention::why_no_attention(job.train.dtype == config::Dtype::bf16 ? at::kBFloat16 : at::kFloat,
                                     model.head_dim);
}

const DeviceModel& default_device(const config::JobConfig& job) {
  return find_device(job.run.device == config::Device::cpu ? "cpu" : "h100");
}

double peak_flops(const config::JobConfig& job, const CostSource& source) {
  if (job.metrics.peak_tflops > 0) return job.metrics.peak_tflops * 1e12;
  if (source.product_flops) return *source.product_flops;
  if (source.device.is_cpu) {
    const bool bfloat16 = job.train.dtype == config::Dtype::bf16;
    return static_cast<double>(job.run.threads) *
           (bfloat16 ? source.device.bfloat16_flops : source.device.float32_flops);
  }
  std::string name(source.device.name);
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return metrics::known_peak_flops(name);
}

double predicted_mfu(const PlanBase& base, const CostSource& source, int world, double tokens_per_s) {
  double peak = peak_flops(base.job, source) * world;
  // Ranks that share cores have together no more than these.
  if (base.job.metrics.peak_tflops == 0) peak /= source.sharing.load(world, base.job.run.threads);
  return metrics::utilization(models::flops_per_token(base.model, base.job.train.seq_len) * tokens_per_s,
                              peak);
}

CostSource on_cores(CostSource source, int world, int64_t threads, const CoreSharing& sharing) {
  if (!source.device.is_cpu || source.from_trace || sharing.load(world, threads) <= 1) return source;
  source.sharing = sharing;
  source.description += fmt::format("; {} threads share {:.3g} core{}", threads * sharing.ranks(world),
                                    sharing.cores, sharing.cores == 1 ? "" : "s");
  return source;
}

schedule::Costs simulation_costs(const CostModel& model, const pipeline::LayerAssignment& layers,
                                 const schedule::Schedule& schedule) {
  schedule::Costs costs;
  costs.streamed = model.shard().gather == schedule::Gather::streamed;
  for (int stage = 0; stage < static_cast<int>(layers.size()); ++stage) {
    const StageForecast& own = model.of(layers, stage);
    costs.stages.push_back(own.cost);
    costs.exchange.push_back(own.beside);
    if (stage > 0)
      costs.latency.push_back(model.transfer(schedule.rank_of(stage - 1), schedule.rank_of(stage)));
  }
  for (int stage = 0; model.by_microbatch() && stage < schedule.stages(); ++stage) {
    const std::vector<const StageForecast*> own = model.of_microbatches(layers, stage);
    for (size_t i = 0; i < static_cast<size_t>(schedule.microbatches); ++i)
      costs.cells.push_back(own[i % own.size()]->cost);
  }
  if (costs.latency.empty()) costs.latency = {0};
  costs.head_latency = model.head_transfer(schedule.rank_of(schedule.stages() - 1));
  const auto nothing = [](const schedule::ExchangeCost& cost) { return cost.gather + cost.reduce == 0; };
  if (std::ranges::all_of(costs.exchange, nothing)) costs.exchange.clear();
  return costs;
}

schedule::Schedule with_head(const CostModel& costs, schedule::Schedule compute,
                             const pipeline::LayerAssignment& layers) {
  if (head_parts(costs.base()) == 1 || compute.spread_head) return compute;
  return schedule::spread_head(compute, simulation_costs(costs, layers, compute));
}

namespace {

std::vector<MeasuredStage> measured_stages(const TraceSummary& trace) {
  std::vector<MeasuredStage> stages;
  for (size_t i = 0; i < trace.layers.size(); ++i) {
    const auto mean = [&](schedule::ActionKind kind) {
      return value_or_zero(trace.stages.at(i), schedule::trace_category(kind));
    };
    stages.push_back({.slice = models::stage_slice(trace.layers, static_cast<int>(i)),
                      .seconds = schedule::PerPass<double>::each(mean)});
  }
  return stages;
}

// Phases of a step that are a rank's own work, other than the passes and the optimizer.
double overhead_of(const TraceSummary& trace) {
  double sum = 0;
  for (const Phase phase : {Phase::data, Phase::zero_gradients, Phase::gradient_norm})
    sum += value_or_zero(trace.phases, name(phase));
  return sum;
}

// Does the option leave the cost of a pass unchanged? All other options of the model change it.
bool costs_nothing(const std::string& option) {
  constexpr std::string_view names[] = {"model.num_hidden_layers",
                                        "model.hf_dir",
                                        "model.init",
                                        "model.initializer_range",
                                        "model.rope_theta",
                                        "model.rms_norm_eps",
                                        "model.tie_word_embeddings",
                                        "model.max_position_embeddings",
                                        "model.norm_topk_prob"};
  return option.starts_with("model.rope_scaling.") || option.starts_with("model.router_") ||
         std::ranges::find(names, option) != std::end(names);
}

bool decides_costs(const std::string& option) {
  if (option.starts_with("model.")) return !costs_nothing(option);
  return option == "train.seq_len" || option == "train.dtype" || option == "run.device" ||
         option == "run.threads";
}

void check_same_costs(const PlanBase& base, const PlanBase& run, const std::string& path) {
  for (const config::Difference& difference : config::differences(run.job, base.job)) {
    if (!decides_costs(difference.option)) continue;
    throw UsageError(fmt::format("{} is of a run with {} = {}, but the job has {}: trace a run of this job",
                                 path, difference.option, difference.saved, difference.now));
  }
}

// A trace of a spread head times the head apart, so costs of a whole head do not follow from it.
void check_whole_head(const PlanBase& run, const std::string& path) {
  if (head_parts(run) == 1) return;
  throw UsageError(
      fmt::format("{} is of a run with pp_head = \"spread\": trace one with "
                  "--set distributed.pp_head=last",
                  path));
}

// Times over microbatches of many lengths do not give the time of a full one.
void check_full_microbatches(const PlanBase& run, const std::string& path) {
  const config::Word<config::Lengths>& lengths = run.job.data.lengths;
  if (lengths == config::Lengths::fixed) return;
  throw UsageError(
      fmt::format("{} is of a run with data.lengths = {}, whose microbatches have other numbers of tokens "
                  "each: trace one with --set data.lengths=fixed",
                  path, lengths.text));
}

// The device with the hosts, and the links between them, that the job names.
DeviceModel on_hosts(DeviceModel device, const config::DistributedSection& d) {
  if (d.ranks_per_host > 0) device.ranks_per_host = static_cast<int>(d.ranks_per_host);
  if (d.host_link_gbps > 0) device.between_hosts.bandwidth = d.host_link_gbps * 1e9 / 8;
  if (d.host_latency_us > 0) device.between_hosts.latency = d.host_latency_us * 1e-6;
  return device;
}

// Throws UsageError if the path is no trace, or if the trace has another model, sequence length, type or
// number of threads.
CostSource measured_costs(const PlanBase& base, const std::string& trace_path) {
  const TraceSummary trace = read_trace(trace_path);
  check_same_costs(base, trace.run, trace_path);
  check_full_microbatches(trace.run, trace_path);
  check_whole_head(trace.run, trace_path);
  const DeviceModel& device = default_device(base.job);
  const Measurement measured{
      .stages = measured_stages(trace),
      .optimizer = value_or_zero(trace.phases, name(Phase::optimizer)) * trace.run.mesh.pp,
      .overhead = overhead_of(trace)};
  return {.device = device,
          .calibration = calibrate(trace.run, on_hosts(device, trace.run.job.distributed), measured),
          .description = fmt::format("measured in {}", trace_path),
          .from_trace = true};
}

}  // namespace

CostSource make_cost_source(const PlanBase& base, const std::string& costs) {
  CostSource source = [&]() -> CostSource {
    if (costs.ends_with(".json")) return measured_costs(base, costs);
    const std::string name = costs.empty() ? std::string(default_device(base.job).name) : costs;
    return {.device = find_device(name), .description = fmt::format("modelled for {}", name)};
  }();
  if (source.device.gpu.is_gpu()) {
    const std::string why = why_no_attention(base.job, base.model);
    if (!why.empty()) throw UsageError(fmt::format("{}: {}", source.device.name, why));
  }
  source.device = on_hosts(source.device, base.job.distributed);
  return source;
}

}  // namespace pptrain::app
