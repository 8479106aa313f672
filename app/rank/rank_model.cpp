#include "app/rank/rank_model.h"

#include <ATen/ops/empty.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "app/plan/plan.h"
#include "app/rank/checkpoint_contents.h"
#include "core/base/error.h"
#include "models/hf_directory.h"
#include "models/learning.h"
#include "parallel/axes/tensor/tensor_group.h"
#include "parallel/pipeline/embedding_shards.h"
#include "parallel/pipeline/tied_gradient.h"
#include "parallel/shard/matrix_exchange.h"

namespace pptrain::app {

namespace {

models::StageParallelism seams_of(RunContext& context) {
  mesh::DeviceMesh& mesh = context.mesh;
  const bool sparse = context.model.sparse.experts > 0;
  return models::make_stage_parallelism({.tp = &mesh.along(mesh::Axis::tp),
                                         .cp = &mesh.along(mesh::Axis::cp),
                                         .ep = sparse ? &mesh.of(mesh::Group::ep) : nullptr,
                                         .stage = sparse ? &mesh.of(mesh::Group::stage) : nullptr,
                                         .cp_kind = context.job.distributed.cp_kind,
                                         .deterministic = context.job.train.deterministic});
}

// Matrices that are sharded over the ranks of a stage are assembled on one of them.
optim::MakeMatrixExchange matrix_exchange(RunContext& context) {
  if (context.mesh.size(mesh::Group::stage) <= 1) return {};
  return [&mesh = context.mesh](std::vector<optim::MatrixPart> parts) {
    return shard::make_matrix_exchange(mesh.of(mesh::Group::stage), std::move(parts));
  };
}

// Tensors that the directory has and this model lacks, and how it deviates from its config.json.
void announce(const models::HfDirectory& directory) {
  for (const std::string& note : directory.notes()) spdlog::info("{}", note);
  for (const std::string& warning : directory.warnings()) spdlog::warn("warning: {}", warning);
}

at::ScalarType compute_dtype(const config::JobConfig& job) {
  return job.train.dtype == config::Dtype::bf16 ? at::kBFloat16 : at::kFloat;
}

// The stream for weight gradients.
std::unique_ptr<nn::SideStream> side_stream_of(const RunContext& context, Purpose purpose) {
  const bool wanted = purpose == Purpose::train && context.job.train.overlap_weight_gradients;
  if (!wanted || context.device.is_cpu()) return nullptr;
  return nn::make_side_stream(context.device);
}

}  // namespace

RankModel::RankModel(RunContext& context, Purpose purpose)
    : context_(context),
      purpose_(purpose),
      schedule_(context.plan.schedule),
      kv_copies_(tensor::make_kv_group(context.mesh.along(mesh::Axis::tp), context.model.kv_heads)),
      side_(side_stream_of(context, purpose)),
      norm_(context.mesh.of(mesh::Group::replica), context.mesh.along(mesh::Axis::pp)) {
  const models::StageParallelism parallelism = seams_of(context);
  for (const int stage : schedule_.stages_of(context.mesh.coordinate(mesh::Axis::pp)))
    add_stage(stage, parallelism);
  if (purpose == Purpose::train && context.model.tied)
    pipeline::connect_tied(context.mesh.along(mesh::Axis::pp), schedule_.rank_of(0), tied_elements());
  if (schedule_.spread_head && purpose != Purpose::generate)
    head_links_ =
        std::make_unique<pipeline::HeadLinks>(context.mesh.along(mesh::Axis::pp), last_stage_rank());
  if (embedding_in_shards()) pipeline::connect_embedding(context.mesh.along(mesh::Axis::pp));
  if (purpose == Purpose::train && context.job.train.check_weights) watch_weights();
}

bool RankModel::generates() const {
  return purpose_ == Purpose::generate ||
         (purpose_ == Purpose::train && context_.job.eval.generate_interval > 0);
}

void RankModel::add_stage(int index, models::StageParallelism parallelism) {
  const Plan& plan = context_.plan;
  RankStage& own = stages_.emplace_back();
  if (generates())
    parallelism.attention = own.attention =
        std::make_shared<attention::CachedAttention>(parallelism.attention);
  own.stage = std::make_unique<models::TransformerStage>(
      plan.model, slice_of(plan, plan.layers, index, /*trains=*/purpose_ == Purpose::train), parallelism);
  own.stage->recompute_by_microbatch(plan.job.train.recompute.levels(index));
  own.stage->materialise(context_.device, compute_dtype(plan.job),
                         /*with_gradients=*/purpose_ == Purpose::train, [&](const nn::ParameterGroup& group) {
                           if (embedding_in_shards() && &group == own.stage->embedding_group())
                             return pipeline::embedding_place(index, schedule_.ranks);
                           return shard_place(group.of_experts() ? mesh::Group::efsdp : mesh::Group::fsdp);
                         });
  if (embedding_in_shards() && own.stage->is_first()) own.stage->embedding_group()->restore_whole_compute();
  own.weights = std::make_unique<shard::StageWeights>(own.stage->parameters(), ranks_of(/*experts=*/false),
                                                      ranks_of(/*experts=*/true), lower_options(plan), sums_,
                                                      fmt::format("stage {}", index));
  own.stage->use_weights(*own.weights);
  own.stage->add_to_loss(loss_terms(context_.job.train));
  if (context_.job.metrics.microbatch_losses) own.stage->keep_microbatch_losses();
  if (side_) own.stage->overlap_weight_gradients(*side_);
  if (purpose_ == Purpose::train) add_optimizer(own);
}

void RankModel::add_optimizer(RankStage& own) {
  nn::ParameterStore& parameters = own.stage->parameters();
  std::vector<nn::Buffer*> learning = parameters.buffers();
  std::erase_if(learning, [](const nn::Buffer* buffer) { return buffer->frozen; });
  own.optimizer = optim::make_optimizer(context_.job.optimizer, learning, matrix_exchange(context_),
                                        context_.job.model.router_bias_update_rate);
  for (nn::Slice* slice : parameters.slices()) {
    if (slice->spec.counted && !slice->spec.frozen && slice->spec.role != nn::Role::balance &&
        !is_tied_copy(context_, *slice))
      own.counted.push_back(slice);
  }
}

void RankModel::watch_weights() {
  guard_.emplace();
  for (RankStage& own : stages_) {
    for (const nn::Slice* slice : own.stage->parameters().slices())
      guard_->watch(slice->spec.name, slice->values());
    for (const optim::StateTensor& state : own.optimizer->state())
      guard_->watch(fmt::format("{} of {}", state.file, state.slice->spec.name), state.tensor);
  }
}

void RankModel::check_weights() const {
  if (!guard_) return;
  const std::optional<std::string> changed = guard_->find_change();
  if (!changed) return;
  throw Error(
      fmt::format("{} changed between optimizer steps {} and {}, while nobody may write to it: this host's "
                  "memory (or its GPU's) is failing. Nothing of it was saved. Take the host out of the job, "
                  "and start the same command again: it resumes from the last checkpoint",
                  *changed, optimizer_step_, optimizer_step_ + 1));
}

nn::ShardPlace RankModel::shard_place(mesh::Group group) {
  return {.index = context_.mesh.place(group),
          .count = context_.mesh.size(group),
          .own_gradient = lower_options(context_.plan).reduce == schedule::Reduce::microbatch};
}

bool RankModel::embedding_in_shards() const {
  return purpose_ == Purpose::train && shares_out_embedding(context_.plan);
}

void RankModel::gather_embedding() {
  if (!embedding_in_shards()) return;
  pipeline::gather_embedding(context_.mesh.along(mesh::Axis::pp), *stages_.front().stage->embedding_group());
}

// Experts have no copies: each is on one rank of its replica's ep group. A model without experts never asks
// for their ranks.
shard::ShardRanks RankModel::ranks_of(bool experts) {
  mesh::DeviceMesh& mesh = context_.mesh;
  comm::Communicator& replicas = mesh.along(mesh::Axis::dp_replicate);
  if (experts && context_.model.sparse.experts > 0) {
    return {.shards = mesh.of(mesh::Group::efsdp), .replicas = replicas, .sum = mesh.of(mesh::Group::eloss)};
  }
  return {.shards = mesh.of(mesh::Group::fsdp),
          .replicas = replicas,
          .sum = mesh.of(mesh::Group::loss),
          .tp_copies = &mesh.along(mesh::Axis::tp),
          .kv_copies = kv_copies_.get()};
}

std::vector<pipeline::StageWithWeights> RankModel::pipeline_stages() const {
  std::vector<pipeline::StageWithWeights> result;
  for (const RankStage& own : stages_) result.push_back({*own.stage, *own.weights});
  return result;
}

void RankModel::overlap_weight_gradients(nn::SideStream& side) {
  for (RankStage& own : stages_) own.stage->overlap_weight_gradients(side);
}

void RankModel::initialise() {
  const bool from_hf = context_.job.model.init == config::Init::hf;
  std::optional<models::HfDirectory> hf;
  if (from_hf) hf.emplace(context_.model, context_.job.model.hf_dir);
  if (hf && context_.root()) announce(*hf);
  for (RankStage& own : stages_) {
    if (hf) hf->load(*own.stage);
    for (nn::ParameterGroup& group : own.stage->parameters().groups()) {
      // Adapters are in no Hugging Face directory.
      if (!from_hf || group.is_of_adapters()) group.initialise(static_cast<uint64_t>(context_.job.run.seed));
    }
    if (own.optimizer) own.optimizer->reset();
  }
  optimizer_step_ = 0;
  gather_embedding();
  if (guard_) guard_->note();
}

void RankModel::load(const checkpoint::Reader& reader, comm::Communicator& comm) {
  if (models::freezes(context_.model)) initialise();
  read_all(context_, stages_, reader, comm);
  gather_embedding();
  optimizer_step_ = reader.state().optimizer_step;
  if (guard_) guard_->note();
}

std::vector<checkpoint::StageContents> RankModel::contents() const {
  return contents_of(context_, stages_);
}

void RankModel::recompute_by_microbatch(std::span<const std::vector<config::Recompute>> levels) {
  for (size_t i = 0; i < stages_.size(); ++i) stages_[i].stage->recompute_by_microbatch(levels[i]);
}

void RankModel::zero_grad() {
  for (RankStage& own : stages_) own.stage->parameters().start_grad();
}

void RankModel::exchange_embedding_gradients() {
  if (embedding_in_shards()) {
    pipeline::scatter_embedding_gradient(context_.mesh.along(mesh::Axis::pp),
                                         *stages_.front().stage->embedding_group());
  }
  if (!context_.model.tied) return;
  at::Tensor embedding, head;
  for (RankStage& own : stages_) {
    std::deque<nn::ParameterGroup>& groups = own.stage->parameters().groups();
    if (own.stage->is_first()) embedding = groups.front().buffers().front()->grad;
    if (own.stage->head_weight() != nullptr) head = groups.back().buffers().front()->grad;
  }
  if (!embedding.defined() && !head.defined()) return;  // frozen, or on other ranks
  pipeline::sum_tied_gradients(context_.mesh.along(mesh::Axis::pp), context_.mesh.of(mesh::Group::fsdp),
                               schedule_.rank_of(0), embedding, head, tied_elements());
}

std::vector<std::pair<int64_t, int64_t>> RankModel::head_rows() const {
  const nn::TensorShard own{.rank = context_.mesh.coordinate(mesh::Axis::tp),
                            .size = context_.mesh.size(mesh::Axis::tp)};
  const int64_t vocab = context_.model.vocab, first = own.begin(vocab, own.rank);
  std::vector<std::pair<int64_t, int64_t>> rows(static_cast<size_t>(schedule_.ranks));
  for (int rank = 0; rank < schedule_.ranks; ++rank) {
    if (!schedule_.has_head(rank)) continue;
    const nn::TensorShard part =
        schedule_.spread_head ? nn::LinearCrossEntropy::part_of(own, rank, schedule_.ranks) : own;
    rows[static_cast<size_t>(rank)] = {part.begin(vocab, part.rank) - first, part.count(vocab)};
  }
  return rows;
}

std::vector<nn::ElementRun> RankModel::tied_elements() const {
  const int64_t columns = context_.model.hidden;
  std::vector<nn::ElementRun> elements;
  for (const auto& [first, count] : head_rows())
    elements.push_back({.global = first * columns, .local = 0, .length = count * columns});
  return elements;
}

void RankModel::gather_head() {
  if (!schedule_.spread_head) return;
  const RankStage& own = stages_.front();
  own.weights->begin_pass({.kind = schedule::ActionKind::head_forward,
                           .next = schedule::ActionKind::forward,
                           .reduce_follows = false});
  const at::Tensor part = own.stage->copy_of_head_part();
  comm::Communicator& pipeline = context_.mesh.along(mesh::Axis::pp);
  std::vector<int64_t> from, to(static_cast<size_t>(pipeline.size()));
  for (const auto& [first, rows] : head_rows()) from.push_back(has_last_stage() ? rows * part.size(1) : 0);
  to[static_cast<size_t>(last_stage_rank())] = part.numel();
  const at::Tensor head = at::empty({std::accumulate(from.begin(), from.end(), int64_t{0})}, part.options());
  pipeline.iall_to_all(head, from, part, to)->wait([] { return "the parts of the head"; });
  if (has_last_stage()) stages_.back().stage->lend_head(head.view({-1, part.size(1)}));
}

void RankModel::release_head() {
  for (RankStage& own : stages_) own.stage->lend_head({});
}

kernels::ExactSum RankModel::squared_norm() {
  std::vector<nn::Slice*> counted;  // of all stages, so that the host waits for the device once
  for (RankStage& own : stages_) counted.insert(counted.end(), own.counted.begin(), own.counted.end());
  return optim::sum_of_squares(counted);
}

std::map<int, at::Tensor> RankModel::take_expert_loads() {
  std::map<int, at::Tensor> loads;
  for (RankStage& own : stages_) loads.merge(own.stage->take_loads());
  return loads;
}

void RankModel::apply(double lr, double grad_scale) {
  check_weights();
  for (const auto& call : before_change_) call();
  for (RankStage& own : stages_) own.optimizer->step(lr, grad_scale);
  gather_embedding();
  ++optimizer_step_;
  if (guard_) guard_->note();
}

void RankModel::keep_previous() {
  for (RankStage& own : stages_) own.optimizer->keep_previous();
}

void RankModel::undo() {
  check_weights();
  for (const auto& call : before_change_) call();
  for (RankStage& own : stages_) own.optimizer->undo();
  gather_embedding();
  --optimizer_step_;
  if (guard_) guard_->note();
}

double RankModel::last_stage_loss() {
  const std::vector<double> own{loss_stage().take_loss()};
  return comm::all_reduce_sum(context_.mesh.of(mesh::Group::loss), own)[0];
}

double RankModel::sum_of_last_stage(double own) {
  return sum_of_last_stage(std::vector<double>{own})[0];
}

std::vector<double> RankModel::sum_of_last_stage(std::vector<double> own) {
  if (has_last_stage()) own = comm::all_reduce_sum(context_.mesh.of(mesh::Group::loss), own);
  comm::broadcast(context_.mesh.along(mesh::Axis::pp), own, last_stage_rank());
  return own;
}

std::vector<double> RankModel::microbatch_losses(int64_t microbatches, int64_t parts) {
  std::vector<double> losses(static_cast<size_t>(microbatches));
  if (has_last_stage()) {
    const std::vector<double> of_parts = loss_stage().microbatch_losses(microbatches * parts);
    for (size_t i = 0; i < of_parts.size(); ++i) losses[i / static_cast<size_t>(parts)] += of_parts[i];
  }
  return sum_of_last_stage(std::move(losses));
}

double RankModel::global_loss() {
  return sum_of_last_stage(loss_stage().take_loss());
}

models::TransformerStage& RankModel::loss_stage() const {
  return *(schedule_.spread_head ? stages_.front() : stages_.back()).stage;
}

}  // namespace pptrain::app
