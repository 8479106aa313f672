#include "app/train/rank_model.h"

#include <spdlog/fmt/fmt.h>

#include <array>

#include "app/plan/stage_recompute.h"
#include "core/base/error.h"
#include "core/optim/squared_norms.h"
#include "models/hf_loader.h"
#include "parallel/pipeline/tied_gradient.h"

namespace pptrain::app {

namespace {

constexpr const char* model_file = "model";

models::Seams seams_of(RunContext& context) {
  mesh::DeviceMesh& mesh = context.mesh;
  return models::make_seams({.tp = &mesh.along(mesh::Axis::tp),
                             .cp = &mesh.along(mesh::Axis::cp),
                             .ep = &mesh.of(mesh::Group::ep),
                             .stage = &mesh.of(mesh::Group::stage)});
}

at::ScalarType compute_dtype(const config::JobConfig& job) {
  return job.train.dtype == "bf16" ? at::kBFloat16 : at::kFloat;
}

}  // namespace

RankModel::RankModel(RunContext& context) : context_(context), schedule_(context.plan.schedule) {
  const Plan& plan = context.plan;
  comm::Communicator& fsdp = context.mesh.of(mesh::Group::fsdp);
  comm::Communicator& replicas = context.mesh.along(mesh::Axis::dp_replicate);
  const models::Seams seams = seams_of(context);
  for (const int index : schedule_.stages_of(context.mesh.coordinate(mesh::Axis::pp))) {
    Part part;
    part.stage =
        std::make_unique<models::TransformerStage>(plan.model, models::stage_slice(plan.layers, index),
                                                   stage_recompute(plan.job.train.recompute, index), seams);
    part.stage->materialise(context.device, compute_dtype(plan.job));
    for (nn::ParameterGroup& group : part.stage->parameters().groups())
      part.groups.emplace_back(group, fsdp, replicas);
    part.optimizer = optim::make_optimizer(plan.job.optimizer, part.stage->parameters().shards());
    parts_.push_back(std::move(part));
  }
  prepare_norm();
}

std::vector<pipeline::Stage*> RankModel::stages() {
  std::vector<pipeline::Stage*> result;
  for (Part& part : parts_) result.push_back(part.stage.get());
  return result;
}

bool RankModel::is_tied_copy(const nn::Slice& slice) const {
  return context_.model.tied && slice.spec.name == "head.weight";
}

void RankModel::prepare_norm() {
  std::vector<std::string> names;
  for (Part& part : parts_) {
    for (nn::Slice* slice : part.stage->parameters().slices()) {
      if (is_tied_copy(*slice)) continue;
      part.counted.push_back(slice);
      names.push_back(slice->spec.name);
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
  const auto source = [&](const nn::Slice& slice) {
    return is_tied_copy(slice) ? std::string("embed.weight") : slice.spec.name;
  };
  for (Part& part : parts_) {
    for (nn::Slice* slice : part.stage->parameters().slices())
      reader.read(model_file, source(*slice), slice->shape, slice->master);
    part.stage->parameters().refresh_compute();
    for (const optim::StateTensor& state : part.optimizer->state()) {
      reader.read(state.file, source(*state.slice), state.slice->shape, state.tensor);
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
    for (const nn::Slice* slice : part.stage->parameters().slices()) {
      if (!is_tied_copy(*slice))
        stage.files[model_file].push_back({slice->spec.name, slice->shape, slice->master});
    }
    for (const optim::StateTensor& state : part.optimizer->state()) {
      const nn::Slice& slice = *state.slice;
      if (!is_tied_copy(slice))
        stage.files[state.file].push_back({slice.spec.name, slice.shape, state.tensor});
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

RankModel::Part& RankModel::part_of(const pipeline::Stage& stage) {
  for (Part& part : parts_) {
    if (part.stage.get() == &stage) return part;
  }
  throw Error(fmt::format("stage {} is not this rank's", stage.index()));
}

// Of one stage, all groups' exchanges are under way together.
pipeline::Executor::StageActions RankModel::stage_actions() {
  using Begin = std::unique_ptr<comm::Work> (shard::GroupExchange::*)();
  const auto exchange = [this](Begin begin, const char* what) {
    return [this, begin, what](pipeline::Stage& stage) {
      std::vector<std::unique_ptr<comm::Work>> works;
      for (shard::GroupExchange& group : part_of(stage).groups) works.push_back((group.*begin)());
      for (const auto& work : works) work->wait([&] { return fmt::format("{}{}", stage.index(), what); });
    };
  };
  return {.unshard = exchange(&shard::GroupExchange::unshard, "UNSHARD"),
          .reshard =
              [this](pipeline::Stage& stage) {
                for (shard::GroupExchange& group : part_of(stage).groups) group.reshard();
              },
          .reduce_grad = exchange(&shard::GroupExchange::reduce_grad, "REDUCE_GRAD")};
}

void RankModel::sum_tied_gradients() {
  if (!context_.model.tied) return;
  at::Tensor embedding, head;
  for (Part& part : parts_) {
    if (part.stage->is_first()) embedding = part.stage->embedding_weight()->grad;
    if (part.stage->is_last()) head = part.stage->head_weight()->grad;
  }
  pipeline::sum_tied_gradient(context_.mesh.along(mesh::Axis::pp), schedule_.rank_of(0), last_stage_rank(),
                              embedding, head);
}

std::vector<double> RankModel::squared_norms() {
  std::vector<double> counted;
  for (Part& part : parts_) {
    const std::vector<double> squares = optim::squared_norms(part.counted);
    counted.insert(counted.end(), squares.begin(), squares.end());
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
