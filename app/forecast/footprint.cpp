#include "app/forecast/footprint.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "core/data/microbatch.h"
#include "core/data/tokens/context_split.h"
#include "core/kernels/dry_run.h"
#include "models/learning.h"
#include "models/transformer_stage.h"
#include "parallel/comm/dry/dry_communicator.h"

namespace pptrain::app {

namespace {

// The microbatch of the first context-parallel rank.
data::Microbatch meta_microbatch(const BatchShape& batch) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  data::Microbatch data{.tokens = {},
                        .labels = {},
                        .positions = {},
                        .segments = tokens::equal_segments(batch.documents, batch.length, at::kMeta),
                        .targets = batch.tokens(),
                        .global_tokens = batch.tokens() * batch.mesh.size(mesh::Group::batch),
                        .global_targets = batch.tokens() * batch.mesh.size(mesh::Group::batch)};
  if (batch.mesh.cp > 1) {
    data.context = std::make_shared<const tokens::ContextSplit>(
        tokens::split_rows(models::order_of(batch.cp_kind), batch.documents, batch.length, batch.mesh.cp, 0));
  }
  data.tokens = at::empty({data.token_count()}, meta.dtype(at::kLong));
  data.labels = at::empty({data.token_count()}, meta.dtype(at::kLong));
  data.positions = at::empty({data.token_count()}, meta.dtype(at::kInt));
  return data;
}

// The microbatch, or its slices.
std::vector<data::Microbatch> meta_microbatches(const BatchShape& batch) {
  const data::Microbatch whole = meta_microbatch(batch);
  if (batch.sequence_slices == 1) return {whole};
  return data::cut_in_slices(whole, batch.sequence_slices, batch.attention_length, batch.mesh.tp, 0);
}

// The groups of one rank, which runs without the others.
struct DryGroups {
  explicit DryGroups(const BatchShape& batch)
      : tp(comm::make_dry(kernels::Wire::tp, 0, batch.mesh.tp)),
        cp(comm::make_dry(kernels::Wire::cp, 0, batch.mesh.cp)),
        ep(comm::make_dry(kernels::Wire::ep, 0, batch.mesh.ep)),
        stage(comm::make_dry(kernels::Wire::ep, 0, batch.mesh.world_size())),
        kind(batch.cp_kind),
        deterministic(batch.deterministic) {}

  models::StageParallelism parallelism() const {
    return models::make_stage_parallelism({.tp = tp.get(),
                                           .cp = cp.get(),
                                           .ep = ep.get(),
                                           .stage = stage.get(),
                                           .cp_kind = kind,
                                           .deterministic = deterministic});
  }

  std::unique_ptr<comm::Communicator> tp, cp, ep, stage;
  models::ContextKind kind;
  bool deterministic;
};

// The cost of a mean slice.
kernels::Cost mean(const kernels::Cost& sum, int slices) {
  const double n = slices;
  kernels::Cost cost{.product_flops = sum.product_flops / n,
                     .fp8_flops = sum.fp8_flops / n,
                     .attention_flops = sum.attention_flops / n,
                     .bytes = sum.bytes / n,
                     .weight_bytes = sum.weight_bytes / n,
                     .kernels = sum.kernels / slices,
                     .traffic = sum.traffic};
  for (kernels::Traffic& traffic : cost.traffic) {
    traffic.bytes /= n;
    traffic.messages /= slices;
  }
  return cost;
}

class DryStage {
 public:
  DryStage(const models::ModelConfig& model, const models::StageSlice& slice, const BatchShape& batch)
      : groups_(batch),
        stage_(model, slice, groups_.parallelism()),
        data_(meta_microbatches(batch)),
        beside_(batch.overlap && batch.gpu.is_gpu()),
        run_(batch.gpu) {
    stage_.materialise(at::kMeta, batch.bfloat16 ? at::kBFloat16 : at::kFloat);
    stage_.size_chunks_for(batch.device);
    stage_.add_to_loss(batch.loss_terms);
    stage_.recompute_by_microbatch({batch.recompute});
    if (batch.overlap) stage_.overlap_weight_gradients(side_);
  }

  StageFootprint run() {
    const c10::InferenceMode inference;
    StageFootprint footprint;
    measure_parameters(footprint);
    for (const data::Microbatch& data : data_)
      footprint.boundary =
          std::max(footprint.boundary, static_cast<int64_t>(stage_.empty_boundary(data).nbytes()));
    footprint.passes.forward = forward(footprint.activation);
    footprint.passes.backward =
        backward(footprint.activation, [&](int i) { stage_.backward(i, gradient(i)); });
    // GEMMs on the side stream have a workspace of their own.
    if (beside_) footprint.passes.backward.workspace += kernels::gemm_workspace_bytes;
    forward(footprint.activation);
    footprint.passes.backward_input =
        backward(footprint.activation, [&](int i) { stage_.backward_input(i, gradient(i)); });
    footprint.weight_operands = stage_.pending_bytes() / slices();
    footprint.passes.backward_weight =
        backward(footprint.weight_operands, [&](int i) { stage_.backward_weight(i); });
    const models::StageSlice& slice = stage_.slice();
    if (slice.has_head_part()) measure_head(footprint);
    if (slice.head && slice.head_parts > 1) footprint.head_gradient = slice.head_parts * footprint.boundary;
    return footprint;
  }

 private:
  void measure_parameters(StageFootprint& footprint) {
    const models::StageSlice& slice = stage_.slice();
    for (nn::ParameterGroup& group : stage_.parameters().groups()) {
      const bool in_shards = slice.embedding_in_shards && &group == stage_.embedding_group();
      GroupFootprint& own =
          footprint.groups.emplace_back(GroupFootprint{.experts = group.of_experts(),
                                                       .adapters = group.is_of_adapters(),
                                                       .pipeline_shards = in_shards ? slice.head_parts : 1,
                                                       .in_passes = !in_shards || slice.embedding,
                                                       .buffers = {},
                                                       .parameters = {},
                                                       .fp8_bytes = group.fp8_bytes()});
      std::vector<const nn::ParameterSpec*> specs;
      for (const nn::Buffer* held : group.buffers()) {
        BufferFootprint& buffer = own.buffers.emplace_back();
        buffer.compute_bytes = static_cast<int64_t>(held->rounded().element_size());
        buffer.copies = held->copies;
        buffer.frozen = held->frozen;
        for (const nn::Slice& slice : held->slices) {
          buffer.elements += slice.shape.numel();
          if (!slice.spec.frozen) specs.push_back(&slice.spec);
        }
      }
      own.parameters = optim::parameter_kinds(specs);
      if (!own.in_passes) continue;
      footprint.parameters += group.parameter_count();
      footprint.weight_bytes += own.fp8_bytes;
      for (const nn::Slice* held : group.slices()) {
        if (held->master.defined()) footprint.weight_bytes += static_cast<int64_t>(held->master.nbytes());
        if (held->grad.defined()) footprint.gradient_bytes += static_cast<int64_t>(held->grad.nbytes());
        if (held->spec.frozen || held->compute.scalar_type() != at::kFloat)
          footprint.weight_bytes += static_cast<int64_t>(held->compute.nbytes());
      }
    }
  }

  // With slices, the mean of all, as for other passes.
  void measure_head(StageFootprint& footprint) {
    for (const data::Microbatch& data : data_) {
      int64_t numbers = 0;  // numbers per row that the parts exchange
      PassFootprint forward =
          pass(0, [&] { numbers = stage_.head_forward(0, data, stage_.empty_boundary(data)).size(1); });
      const int64_t held = stage_.head_bytes();
      forward.workspace -= held;
      const at::Tensor statistics = at::empty({stage_.slice().head_parts, data.labels.numel(), numbers},
                                              at::TensorOptions().device(at::kMeta).dtype(at::kFloat));
      add(footprint.passes.head_forward, forward);
      add(footprint.passes.head_backward,
          pass(held, [&] { stage_.head_backward(0, data, statistics, /*with_gradients=*/true); }));
      footprint.head += held / slices();
    }
    footprint.passes.head_forward.cost = mean(footprint.passes.head_forward.cost, slices());
    footprint.passes.head_backward.cost = mean(footprint.passes.head_backward.cost, slices());
  }

  int slices() const { return static_cast<int>(data_.size()); }

  at::Tensor gradient(int slice) {
    return stage_.is_last() ? at::Tensor() : stage_.empty_boundary(data_[static_cast<size_t>(slice)]);
  }

  // Sets `activation` to what the pass leaves. With slices both are means, and keys that layers copy count.
  PassFootprint forward(int64_t& activation) {
    PassFootprint result;
    const int64_t before = run_.current_bytes();
    for (int i = 0; i < slices(); ++i) {
      const data::Microbatch& data = data_[static_cast<size_t>(i)];
      const int64_t left = run_.current_bytes();
      PassFootprint own = pass(0, [&] {
        stage_.forward(i, data, stage_.is_first() ? at::Tensor() : stage_.empty_boundary(data));
      });
      own.workspace -= slices() == 1 ? stage_.saved_bytes() : run_.current_bytes() - left;
      add(result, own);
    }
    activation = slices() == 1 ? stage_.saved_bytes() : (run_.current_bytes() - before) / slices();
    result.cost = mean(result.cost, slices());
    return result;
  }

  // The last slice first. The first of these passes allocates the gradients of the kept keys.
  template <typename Pass>
  PassFootprint backward(int64_t held, const Pass& body) {
    PassFootprint result;
    for (int i = slices() - 1; i >= 0; --i) add(result, pass(held, [&] { body(i); }));
    result.cost = mean(result.cost, slices());
    return result;
  }

  static void add(PassFootprint& sum, const PassFootprint& own) {
    sum.cost += own.cost;
    sum.workspace = std::max(sum.workspace, own.workspace);
  }

  // `held`: bytes of the microbatch that exist before the pass. The run goes on: a later pass frees what this
  // one leaves.
  template <typename Pass>
  PassFootprint pass(int64_t held, const Pass& body) {
    const kernels::Cost before = run_.cost();
    const int64_t resident = run_.current_bytes() - held;
    run_.reset_peak();
    body();
    return {.cost = run_.cost() - before, .workspace = run_.peak_bytes() - resident - held};
  }

  DryGroups groups_;
  nn::SideStream side_;
  models::TransformerStage stage_;
  std::vector<data::Microbatch> data_;  // the microbatch, or its slices
  bool beside_;                         // B computes on two streams
  kernels::DryRun run_;                 // begins when parameters and microbatch are there
};

}  // namespace

schedule::StageBytes StageFootprint::bytes() const {
  return {.activation = activation,
          .weight_operands = weight_operands,
          .workspace = schedule::PerPass<int64_t>::each(
              [&](schedule::ActionKind pass) { return passes.of(pass).workspace; }),
          .message = boundary,
          .head = head,
          .head_gradient = head_gradient};
}

StageFootprint dry_run(const models::ModelConfig& model, const models::StageSlice& slice,
                       const BatchShape& batch) {
  models::ModelConfig reaching = model;
  reaching.max_seq = batch.length;  // for the rotary tables, which cost nothing here
  return DryStage(reaching, slice, batch).run();
}

namespace {

// Layers: longer stages are extrapolated from this one and the one before. With overlapped weight gradients
// the second layer in B finds operands of the first, as every later one does.
int long_stage(const BatchShape& batch) {
  return batch.overlap ? 3 : 2;
}

// `b` plus `n` times its excess over `a`.
int64_t extended(int64_t a, int64_t b, int n) {
  return b + n * (b - a);
}

PassFootprint extended(const PassFootprint& a, const PassFootprint& b, int n) {
  PassFootprint c{.cost = b.cost, .workspace = extended(a.workspace, b.workspace, n)};
  const kernels::Cost layer = b.cost - a.cost;
  for (int i = 0; i < n; ++i) c.cost += layer;
  return c;
}

// A stage with `n` layers more than `b`, which has one more than `a`. `before`: groups before the first
// layer.
StageFootprint extended(const StageFootprint& a, const StageFootprint& b, int n, int before) {
  StageFootprint c{.groups = {b.groups.begin(), b.groups.begin() + before},
                   .parameters = extended(a.parameters, b.parameters, n),
                   .weight_bytes = extended(a.weight_bytes, b.weight_bytes, n),
                   .gradient_bytes = extended(a.gradient_bytes, b.gradient_bytes, n),
                   .activation = extended(a.activation, b.activation, n),
                   .weight_operands = extended(a.weight_operands, b.weight_operands, n),
                   .boundary = b.boundary,
                   .passes = schedule::PerPass<PassFootprint>::each([&](schedule::ActionKind pass) {
                     return extended(a.passes.of(pass), b.passes.of(pass), n);
                   }),
                   .head = b.head,
                   .head_gradient = b.head_gradient};
  const auto layer = b.groups.begin() + before;
  const std::vector<GroupFootprint> more(layer, layer + (std::ssize(b.groups) - std::ssize(a.groups)));
  c.groups.reserve(b.groups.size() + static_cast<size_t>(n) * more.size());
  for (int i = 0; i < n; ++i) c.groups.insert(c.groups.end(), more.begin(), more.end());
  c.groups.insert(c.groups.end(), layer, b.groups.end());
  return c;
}

// Parameters that a layer declares, without its number, and whether each is frozen.
std::vector<std::pair<std::string, bool>> declared_by(const models::ModelConfig& model, int layer) {
  models::TransformerStage alone(
      model, {.index = 0, .first_layer = layer, .end_layer = layer + 1, .embedding = false, .head = false});
  std::vector<std::pair<std::string, bool>> result;
  for (const nn::ParameterSpec* spec : alone.parameters().specs())
    result.emplace_back(spec->name.substr(spec->name.find('.', spec->name.find('.') + 1)), spec->frozen);
  return result;
}

}  // namespace

Footprints::Footprints(const models::ModelConfig& model, const BatchShape& batch)
    : model_(model), batch_(batch) {
  using Declared = std::vector<std::pair<std::string, bool>>;
  std::map<std::tuple<bool, models::LayerKind, Declared>, int> kinds;
  for (int layer = 0; layer < model.layers; ++layer) {
    Declared declared = models::freezes(model) ? declared_by(model, layer) : Declared();
    const auto known =
        kinds.try_emplace({model.sparse.contains(layer), model.kind(layer), std::move(declared)},
                          static_cast<int>(kinds.size()));
    kind_of_layer_.push_back(known.first->second);
  }
}

Footprints::Kind Footprints::kind_of(const models::StageSlice& slice) const {
  const auto layer = [&](int number) { return kind_of_layer_.begin() + number; };
  return {std::vector<int>(layer(slice.first_layer), layer(slice.end_layer)),
          slice.embedding,
          slice.head,
          slice.head_parts,
          slice.has_head_part(),
          slice.embedding_in_shards};
}

const StageFootprint& Footprints::of(const models::StageSlice& slice) const {
  const Kind kind = kind_of(slice);
  const auto found = known_.find(kind);
  if (found != known_.end()) return found->second;
  return known_.emplace(kind, measure(slice)).first->second;
}

const StageFootprint& Footprints::of_layers(models::StageSlice slice, int layers) const {
  slice.end_layer = slice.first_layer + layers;
  return of(slice);
}

bool Footprints::alike(const models::StageSlice& slice) const {
  const auto kind_of_layer = [&](int layer) {
    return kind_of(
        {.index = 0, .first_layer = layer, .end_layer = layer + 1, .embedding = false, .head = false});
  };
  for (int layer = slice.first_layer + 1; layer < slice.end_layer; ++layer) {
    if (kind_of_layer(layer) != kind_of_layer(slice.first_layer)) return false;
  }
  return true;
}

StageFootprint Footprints::measure(const models::StageSlice& slice) const {
  const int layers = slice.end_layer - slice.first_layer;
  const int run = long_stage(batch_);
  if (layers <= run || !alike(slice)) return dry_run(model_, slice, batch_);
  return extended(of_layers(slice, run - 1), of_layers(slice, run), layers - run,
                  slice.embedding || slice.has_embedding_shard() ? 1 : 0);
}

}  // namespace pptrain::app
