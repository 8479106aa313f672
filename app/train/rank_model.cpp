#include "app/train/rank_model.h"

#include <spdlog/fmt/fmt.h>

#include <array>

#include "core/base/error.h"
#include "core/optim/grad_norm.h"
#include "models/hf_loader.h"
#include "parallel/pipeline/tied_gradient.h"

namespace pptrain::app {

namespace {

constexpr const char* model_file = "model";

at::ScalarType compute_dtype(const config::JobConfig& job) {
  return job.train.dtype == "bf16" ? at::kBFloat16 : at::kFloat;
}

}  // namespace

RankModel::RankModel(RunContext& context, const std::vector<std::pair<int, int>>& layers,
                     const schedule::Schedule& placement)
    : context_(context), placement_(placement) {
  const models::Recompute recompute = models::make_recompute(context.job.train.recompute);
  for (const int index : placement.stages_of(context.mesh.coordinate(mesh::Axis::pp))) {
    Part part;
    part.stage = std::make_unique<models::TransformerStage>(context.model, models::stage_slice(layers, index),
                                                            recompute);
    part.stage->materialise(context.device, compute_dtype(context.job));
    part.optimizer = std::make_unique<optim::AdamW>(part.stage->parameters(), context.job.optimizer);
    parts_.push_back(std::move(part));
  }
  prepare_norm();
}

std::vector<pipeline::Stage*> RankModel::stages() {
  std::vector<pipeline::Stage*> result;
  for (Part& part : parts_) result.push_back(part.stage.get());
  return result;
}

bool RankModel::is_tied_copy(const nn::Parameter& parameter) const {
  return context_.model.tied && parameter.spec.name == "head.weight";
}

void RankModel::prepare_norm() {
  std::vector<std::string> names;
  for (Part& part : parts_) {
    const auto parameters = part.stage->parameters().parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (is_tied_copy(parameters[i])) continue;
      part.counted.push_back(i);
      names.push_back(parameters[i].spec.name);
    }
  }
  norm_.emplace(context_.mesh.along(mesh::Axis::pp), names);
}

void RankModel::initialise() {
  for (Part& part : parts_) {
    if (context_.job.model.init == "hf") {
      models::load_hf_weights(*part.stage, context_.job.model.hf_dir);
    } else {
      part.stage->parameters().initialise(static_cast<uint64_t>(context_.job.run.seed));
    }
  }
}

void RankModel::load(const checkpoint::Reader& reader) {
  if (const size_t stored = reader.names(model_file).size(); stored != norm_->parameters()) {
    throw Error(
        fmt::format("the checkpoint holds {} parameters, the job's model has {}: it is another model's",
                    stored, norm_->parameters()));
  }
  const auto source = [&](const nn::Parameter& p) {
    return is_tied_copy(p) ? std::string("embed.weight") : p.spec.name;
  };
  for (Part& part : parts_) {
    for (nn::Parameter& p : part.stage->parameters().parameters())
      reader.read(model_file, source(p), p.master);
    part.stage->parameters().refresh_compute();
    for (const optim::StateTensor& state : part.optimizer->state()) {
      reader.read(state.file, source(*state.parameter), state.tensor);
    }
    part.optimizer->set_step(reader.state().optimizer_step);
  }
  optimizer_step_ = reader.state().optimizer_step;
}

std::vector<checkpoint::StageContents> RankModel::contents() const {
  if (context_.mesh.coordinate(mesh::Axis::dp_replicate) != 0) return {};
  std::vector<checkpoint::StageContents> result;
  for (const Part& part : parts_) {
    checkpoint::StageContents& stage = result.emplace_back();
    stage.stage = part.stage->index();
    for (const nn::Parameter& p : part.stage->parameters().parameters()) {
      if (!is_tied_copy(p))
        stage.files[model_file].push_back(checkpoint::whole_tensor(p.spec.name, p.master));
    }
    for (const optim::StateTensor& state : part.optimizer->state()) {
      if (!is_tied_copy(*state.parameter))
        stage.files[state.file].push_back(checkpoint::whole_tensor(state.parameter->spec.name, state.tensor));
    }
  }
  return result;
}

void RankModel::zero_grad() {
  for (Part& part : parts_) part.stage->parameters().zero_grad();
}

void RankModel::discard() {
  for (Part& part : parts_) part.stage->discard();
}

void RankModel::reduce_gradients(pipeline::Stage& stage) {
  if (context_.mesh.size(mesh::Axis::dp_replicate) == 1) return;
  context_.mesh.along(mesh::Axis::dp_replicate).all_reduce_sum(stage.parameters().flat_grad());
}

void RankModel::sum_tied_gradients() {
  if (!context_.model.tied) return;
  at::Tensor embedding, head;
  for (Part& part : parts_) {
    if (part.stage->is_first()) embedding = part.stage->embedding_weight()->grad;
    if (part.stage->is_last()) head = part.stage->head_weight()->grad;
  }
  pipeline::sum_tied_gradient(context_.mesh.along(mesh::Axis::pp), placement_.rank_of(0), last_stage_rank(),
                              embedding, head);
}

std::vector<double> RankModel::squared_norms() {
  std::vector<double> counted;
  for (Part& part : parts_) {
    const std::vector<double> squares = optim::squared_norms(part.stage->parameters());
    for (const size_t i : part.counted) counted.push_back(squares[i]);
  }
  return counted;
}

void RankModel::apply(double lr, double grad_scale) {
  for (Part& part : parts_) part.optimizer->step(lr, grad_scale);
  ++optimizer_step_;
}

void RankModel::keep_previous() {
  for (Part& part : parts_) part.optimizer->keep_previous();
}

void RankModel::undo() {
  for (Part& part : parts_) part.optimizer->undo();
  --optimizer_step_;
}

pipeline::LossSum RankModel::take_loss() {
  return parts_.back().stage->take_loss();
}

pipeline::LossSum RankModel::global_loss() {
  std::vector<double> sums(2, 0.0);
  if (has_last_stage()) {
    const pipeline::LossSum own = take_loss();
    sums = {own.loss, static_cast<double>(own.tokens)};
    sums = comm::all_reduce_sum(context_.mesh.along(mesh::Axis::dp_replicate), sums);
  }
  comm::broadcast(context_.mesh.along(mesh::Axis::pp), sums, last_stage_rank());
  return {.loss = sums[0], .tokens = static_cast<int64_t>(sums[1])};
}

}  // namespace pptrain::app
