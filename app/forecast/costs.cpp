#include "app/forecast/costs.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "app/forecast/measured_costs.h"
#include "app/plan/plan.h"
#include "app/plan/stage_recompute.h"
#include "core/base/error.h"
#include "core/metrics/peak_flops.h"
#include "core/nn/attention_choice.h"
#include "models/transformer_stage.h"

namespace pptrain::app {

std::string why_no_attention(const config::JobConfig& job, const models::ModelConfig& model) {
  return nn::why_no_attention(job.train.dtype == "bf16" ? at::kBFloat16 : at::kFloat, model.head_dim);
}

const DeviceModel& default_device(const config::JobConfig& job) {
  return find_device(job.run.device == "cpu" ? "cpu" : "h100");
}

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
  const config::DistributedSection& d = base.job.distributed;
  if (d.ranks_per_host > 0) source.device.ranks_per_host = static_cast<int>(d.ranks_per_host);
  if (d.host_link_gbps > 0) source.device.between_hosts.bandwidth = d.host_link_gbps * 1e9 / 8;
  return source;
}

double peak_flops(const config::JobConfig& job, const CostSource& source) {
  if (job.metrics.peak_tflops > 0) return job.metrics.peak_tflops * 1e12;
  if (source.product_flops) return *source.product_flops;
  std::string name(source.device.name);
  if (name == "cpu") {
    const bool bfloat16 = job.train.dtype == "bf16";
    return static_cast<double>(job.run.threads) *
           (bfloat16 ? source.device.bfloat16_flops : source.device.float32_flops);
  }
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return metrics::known_peak_flops(name);
}

models::ContextKind context_kind(const config::DistributedSection& distributed) {
  return models::parse_context_kind(distributed.cp_kind);
}

Sharding sharding_of(const PlanBase& base) {
  const schedule::ShardOptions exchanged = lower_options(base).shard;
  return {.dense = base.mesh.size(mesh::Group::fsdp),
          .experts = base.mesh.size(mesh::Group::efsdp),
          .streamed = exchanged.streamed,
          .every_microbatch = exchanged.reduce == schedule::Reduce::microbatch};
}

Workload workload_of(const PlanBase& base) {
  const config::JobConfig& job = base.job;
  return {.batch = {.documents = job.train.micro_batch_size,
                    .length = job.train.seq_len,
                    .bfloat16 = job.train.dtype == "bf16",
                    .recompute = stage_recompute(job.train.recompute, 0),
                    .device = job.run.device == "cpu" ? at::kCPU : at::kCUDA,
                    .deterministic = job.train.deterministic,
                    .parallel = parallel_shape(base.mesh, context_kind(job.distributed)),
                    .overlap = job.train.overlap_weight_gradients && job.run.device != "cpu"},
          .recompute = recompute_of_stages(job.train.recompute),
          .mesh = base.mesh,
          .sharding = sharding_of(base),
          .threads = job.run.threads,
          .optimizer = job.optimizer};
}

CostModel make_cost_model(const PlanBase& base, const CostSource& source) {
  return {base.model, workload_of(base), source.device, source.calibration};
}

CostModel make_cost_model(const PlanBase& base, const CostSource& source, FootprintCache& cache) {
  return {cache, workload_of(base), source.device, source.calibration};
}

schedule::Costs simulation_costs(const CostModel& model, const pipeline::LayerAssignment& layers,
                                 const schedule::Schedule& schedule) {
  schedule::Costs costs;
  costs.streamed = model.workload().sharding.streamed;
  for (int stage = 0; stage < static_cast<int>(layers.size()); ++stage) {
    const models::StageSlice slice = models::stage_slice(layers, stage);
    costs.stages.push_back(model.stage(slice));
    costs.exchange.push_back(model.beside_passes(slice));
    if (stage > 0) {
      costs.latency.push_back(model.transfer(schedule.rank_of(stage - 1), schedule.rank_of(stage)));
    }
  }
  if (costs.latency.empty()) costs.latency = {0};
  const auto nothing = [](const schedule::ExchangeCost& cost) { return cost.gather + cost.reduce == 0; };
  if (std::ranges::all_of(costs.exchange, nothing)) costs.exchange.clear();
  return costs;
}

}  // namespace pptrain::app
