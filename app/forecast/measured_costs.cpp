#include "app/forecast/measured_costs.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <utility>

#include "app/plan/plan.h"
#include "app/plan/stage_recompute.h"
#include "app/trace/trace_file.h"
#include "core/base/error.h"
#include "models/transformer_stage.h"
#include "parallel/schedule/render/trace_names.h"

namespace pptrain::app {

namespace {

std::vector<MeasuredStage> measured_stages(const TraceSummary& trace) {
  const pipeline::LayerAssignment layers = pipeline::from_counts(trace.run.layers_per_stage);
  std::vector<MeasuredStage> stages;
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto mean = [&](schedule::ActionKind kind) {
      return value_or_zero(trace.stages.at(i), schedule::trace_category(kind));
    };
    stages.push_back({.slice = models::stage_slice(layers, static_cast<int>(i)),
                      .forward = mean(schedule::ActionKind::forward),
                      .backward = mean(schedule::ActionKind::backward),
                      .backward_input = mean(schedule::ActionKind::backward_input),
                      .backward_weight = mean(schedule::ActionKind::backward_weight)});
  }
  return stages;
}

// Phases of a step that are a rank's own work besides the passes and the optimizer.
double overhead_of(const TraceSummary& trace) {
  double sum = 0;
  for (const Phase phase : {Phase::data, Phase::zero_gradients, Phase::gradient_norm})
    sum += value_or_zero(trace.phases, name(phase));
  return sum;
}

mesh::MeshShape mesh_of(const TracedRun& run) {
  const mesh::MeshShape mesh{.pp = static_cast<int>(run.pp),
                             .dp_replicate = static_cast<int>(run.dp_replicate),
                             .dp_shard = static_cast<int>(run.dp_shard),
                             .cp = static_cast<int>(run.cp),
                             .tp = static_cast<int>(run.tp),
                             .ep = static_cast<int>(run.ep)};
  mesh::check_shape(mesh);
  return mesh;
}

// What a rank of the traced run did.
Workload workload_of(const TracedRun& run, config::OptimizerSection optimizer) {
  optimizer.post_validation = run.post_validation;
  const mesh::MeshShape mesh = mesh_of(run);
  const auto kind = run.cp_kind == "ulysses" ? models::ContextKind::ulysses : models::ContextKind::ring;
  return {.batch = {.documents = run.micro_batch_size,
                    .length = run.seq_len,
                    .bfloat16 = run.dtype == "bf16",
                    .recompute = stage_recompute(run.recompute, 0),
                    .parallel = parallel_shape(mesh, kind)},
          .recompute = recompute_of_stages(run.recompute),
          .mesh = mesh,
          .sharding = {.dense = mesh.size(mesh::Group::fsdp),
                       .experts = mesh.size(mesh::Group::efsdp),
                       .streamed = run.reshard_after_forward,
                       .every_microbatch = run.reduce_gradients == "microbatch"},
          .threads = run.threads,
          .optimizer = std::move(optimizer)};
}

void check_same_model(const PlanBase& base, const TracedRun& run, const std::string& path) {
  const auto check = [&](const char* what, const auto& ours, const auto& theirs) {
    if (ours == theirs) return;
    throw UsageError(fmt::format("{} is of a run with {} = {}, but the job has {}: trace a run of this job",
                                 path, what, theirs, ours));
  };
  check("model.arch", base.model.arch, run.model.arch);
  check("hidden_size", base.model.hidden, run.model.hidden);
  check("intermediate_size", base.model.intermediate, run.model.intermediate);
  check("num_attention_heads", base.model.heads, run.model.heads);
  check("num_key_value_heads", base.model.kv_heads, run.model.kv_heads);
  check("head_dim", base.model.head_dim, run.model.head_dim);
  check("vocab_size", base.model.vocab, run.model.vocab);
  check("num_experts", base.model.sparse.experts, run.model.sparse.experts);
  check("num_experts_per_tok", base.model.sparse.chosen, run.model.sparse.chosen);
  check("the experts' width", base.model.sparse.intermediate, run.model.sparse.intermediate);
  check("decoder_sparse_step", base.model.sparse.step, run.model.sparse.step);
  check("mlp_only_layers", base.model.sparse.dense, run.model.sparse.dense);
  check("train.seq_len", base.job.train.seq_len, run.seq_len);
  check("train.dtype", base.job.train.dtype, run.dtype);
  check("run.device", base.job.run.device, std::string(run.device == "cpu" ? "cpu" : "cuda"));
  check("run.threads", base.job.run.threads, run.threads);
}

// Of times over microbatches of many lengths nothing follows for a full one.
void check_full_microbatches(const TracedRun& run, const std::string& path) {
  if (run.lengths == "fixed") return;
  throw UsageError(
      fmt::format("{} is of a run with data.lengths = {}, whose microbatches have other numbers of "
                  "tokens each: trace one with --set data.lengths=fixed",
                  path, run.lengths));
}

}  // namespace

CostSource measured_costs(const PlanBase& base, const std::string& trace_path) {
  const TraceSummary trace = read_trace(trace_path);
  check_same_model(base, trace.run, trace_path);
  check_full_microbatches(trace.run, trace_path);
  const DeviceModel& device = default_device(base.job);
  models::ModelConfig model = base.model;
  model.layers = trace.run.model.layers;  // the run may have had more of them, or fewer
  const Workload workload = workload_of(trace.run, base.job.optimizer);
  const Measurement measured{
      .stages = measured_stages(trace),
      .optimizer = value_or_zero(trace.phases, name(Phase::optimizer)) * static_cast<double>(trace.run.pp),
      .overhead = overhead_of(trace)};
  return {.device = device,
          .calibration = calibrate(model, workload, device, measured),
          .description = fmt::format("measured in {}", trace_path)};
}

}  // namespace pptrain::app
