#include "models/footprint.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <memory>
#include <utility>

#include "core/kernels/context_plan.h"
#include "core/kernels/dry_run.h"
#include "parallel/comm/dry/dry_communicator.h"

namespace pptrain::models {
namespace {

// Of the first context-parallel rank.
data::Microbatch meta_microbatch(const BatchShape& batch) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  data::Microbatch data{.tokens = {},
                        .labels = {},
                        .positions = {},
                        .segments = kernels::equal_segments(batch.documents, batch.length, at::kMeta),
                        .targets = batch.tokens(),
                        .global_tokens = batch.tokens() * batch.parallel.batch,
                        .global_targets = batch.tokens() * batch.parallel.batch};
  if (batch.parallel.cp > 1) {
    data.context = std::make_shared<const kernels::ContextSplit>(kernels::split_rows(
        order_of(batch.parallel.cp_kind), batch.documents, batch.length, batch.parallel.cp, 0));
  }
  data.tokens = at::empty({data.token_count()}, meta.dtype(at::kLong));
  data.labels = at::empty({data.token_count()}, meta.dtype(at::kLong));
  data.positions = at::empty({data.token_count()}, meta.dtype(at::kInt));
  return data;
}

// The groups of a rank that is alone with its tensors.
struct DryGroups {
  explicit DryGroups(const ParallelShape& shape)
      : tp(comm::make_dry(kernels::Wire::tp, 0, shape.tp)),
        cp(comm::make_dry(kernels::Wire::cp, 0, shape.cp)),
        ep(comm::make_dry(kernels::Wire::ep, 0, shape.ep)),
        stage(comm::make_dry(kernels::Wire::ep, 0, shape.batch * shape.cp * shape.tp)),
        kind(shape.cp_kind) {}

  Seams seams() const {
    return make_seams(
        {.tp = tp.get(), .cp = cp.get(), .ep = ep.get(), .stage = stage.get(), .cp_kind = kind});
  }

  std::unique_ptr<comm::Communicator> tp, cp, ep, stage;
  ContextKind kind;
};

class DryStage {
 public:
  DryStage(const ModelConfig& model, const StageSlice& slice, const BatchShape& batch)
      : groups_(batch.parallel),
        stage_(model, slice, batch.recompute, groups_.seams()),
        data_(meta_microbatch(batch)) {
    stage_.materialise(at::kMeta, batch.bfloat16 ? at::kBFloat16 : at::kFloat);
    stage_.size_chunks_for(batch.device);
  }

  StageFootprint run() {
    const c10::InferenceMode inference;
    StageFootprint footprint;
    measure_parameters(footprint);
    footprint.boundary = static_cast<int64_t>(stage_.empty_boundary(data_).nbytes());
    footprint.forward = forward(footprint.activation);
    footprint.backward = pass(footprint.activation, [&] { stage_.backward(0, gradient()); });
    forward(footprint.activation);
    footprint.backward_input = pass(footprint.activation, [&] { stage_.backward_input(0, gradient()); });
    footprint.weight_operands = stage_.pending_bytes();
    footprint.backward_weight = pass(footprint.weight_operands, [&] { stage_.backward_weight(0); });
    return footprint;
  }

 private:
  void measure_parameters(StageFootprint& footprint) {
    footprint.parameters = stage_.parameters().parameter_count();
    for (const nn::Slice* slice : stage_.parameters().slices()) {
      footprint.weight_bytes += static_cast<int64_t>(slice->master.nbytes());
      footprint.gradient_bytes += static_cast<int64_t>(slice->grad.nbytes());
      if (slice->compute.scalar_type() != at::kFloat)
        footprint.weight_bytes += static_cast<int64_t>(slice->compute.nbytes());
    }
  }

  at::Tensor gradient() { return stage_.is_last() ? at::Tensor() : stage_.empty_boundary(data_); }

  // Sets `activation` to what the pass leaves.
  PassFootprint forward(int64_t& activation) {
    PassFootprint result = pass(0, [&] {
      stage_.forward(0, data_, stage_.is_first() ? at::Tensor() : stage_.empty_boundary(data_));
    });
    activation = stage_.saved_bytes();
    result.workspace -= activation;
    return result;
  }

  // `held`: bytes of the microbatch that are there before the pass. The run lives on: what a pass leaves is
  // freed by a later one.
  template <typename Pass>
  PassFootprint pass(int64_t held, const Pass& body) {
    const kernels::Cost before = run_.cost();
    const int64_t resident = run_.current_bytes() - held;
    run_.reset_peak();
    body();
    return {.cost = run_.cost() - before, .workspace = run_.peak_bytes() - resident - held};
  }

  DryGroups groups_;
  TransformerStage stage_;
  data::Microbatch data_;
  kernels::DryRun run_;  // begins when parameters and microbatch are there
};

}  // namespace

schedule::StageBytes StageFootprint::bytes() const {
  return {.activation = activation,
          .weight_operands = weight_operands,
          .workspace_forward = forward.workspace,
          .workspace_backward = backward.workspace,
          .workspace_backward_input = backward_input.workspace,
          .workspace_backward_weight = backward_weight.workspace,
          .message = boundary};
}

StageFootprint dry_run(const ModelConfig& model, const StageSlice& slice, const BatchShape& batch) {
  ModelConfig reaching = model;
  reaching.max_seq = batch.length;  // of the rotary tables, which cost nothing here
  return DryStage(reaching, slice, batch).run();
}

const StageFootprint& Footprints::of(const StageSlice& slice) const {
  const Kind kind{slice.end_layer - slice.first_layer, slice.embedding, slice.head};
  const auto found = known_.find(kind);
  if (found != known_.end()) return found->second;
  return known_.emplace(kind, dry_run(model_, slice, batch_)).first->second;
}

}  // namespace pptrain::models
