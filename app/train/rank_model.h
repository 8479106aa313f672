// One rank's share of the model: its stages, their optimizers, and what ties them to the other ranks once a
// step.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "app/train/run_context.h"
#include "core/optim/optimizer.h"
#include "models/transformer_stage.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/pipeline/executor.h"
#include "parallel/schedule/schedule.h"
#include "parallel/shard/grad_norm.h"
#include "parallel/shard/group_exchange.h"

namespace pptrain::app {

class RankModel {
 public:
  // Builds this rank's stages of the plan and materialises them, without values. Collective, as what
  // exchanges anything here.
  explicit RankModel(RunContext& context);

  std::vector<pipeline::Stage*> stages();

  // Values of a new run: from the seed, or from model.hf_dir.
  void initialise();
  void load(const checkpoint::Reader& reader);
  // What this rank writes: everything of its stages on data-parallel rank 0, nothing elsewhere.
  std::vector<checkpoint::StageContents> contents() const;

  void zero_grad();
  void discard();  // drops records of a failed step
  // What UNSHARD, RESHARD and REDUCE_GRAD do with the parameter groups of one of the stages.
  pipeline::Executor::StageActions stage_actions();
  void sum_tied_gradients();
  std::vector<double> squared_norms();  // of the summed, unscaled gradients: this rank's terms of norm()
  const shard::GradNorm& norm() const { return *norm_; }  // over the whole model
  void apply(double lr, double grad_scale);
  void keep_previous();  // from now on undo() can take the last apply() back
  void undo();

  // Loss and valid tokens, summed over all ranks; the same on every rank.
  pipeline::LossSum global_loss();
  pipeline::LossSum take_loss();  // this replica's; on the last stage's rank alone
  bool has_last_stage() const { return context_.mesh.coordinate(mesh::Axis::pp) == last_stage_rank(); }

  // Of the backward passes since the last call, from this rank.
  std::vector<models::TransformerStage::ExpertLoads> take_expert_loads();

  int64_t optimizer_step() const { return optimizer_step_; }
  int last_stage_rank() const { return schedule_.rank_of(schedule_.stages() - 1); }

 private:
  struct Part {
    std::unique_ptr<models::TransformerStage> stage;
    std::vector<shard::GroupExchange> groups;  // of the stage
    std::unique_ptr<optim::Optimizer> optimizer;
    std::vector<nn::Slice*> counted;  // that enter the norm: all but the copy of a tied weight
  };
  bool is_tied_copy(const nn::Slice& slice) const;
  void prepare_norm();
  Part& part_of(const pipeline::Stage& stage);

  RunContext& context_;
  const schedule::Schedule& schedule_;
  std::vector<Part> parts_;
  std::optional<shard::GradNorm> norm_;
  int64_t optimizer_step_ = 0;
};

}  // namespace pptrain::app
