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
#include "parallel/schedule/schedule.h"
#include "parallel/shard/grad_norm.h"

namespace pptrain::app {

class RankModel {
 public:
  // Builds this rank's stages of `layers` ([start, end) of each stage) and materialises them, without values.
  RankModel(RunContext& context, const std::vector<std::pair<int, int>>& layers,
            const schedule::Schedule& placement);

  std::vector<pipeline::Stage*> stages();

  // Values of a new run: from the seed, or from model.hf_dir.
  void initialise();
  void load(const checkpoint::Reader& reader);
  // What this rank writes: everything of its stages on data-parallel rank 0, nothing elsewhere.
  std::vector<checkpoint::StageContents> contents() const;

  void zero_grad();
  void discard();                                 // drops records of a failed step
  void reduce_gradients(pipeline::Stage& stage);  // sum over the data-parallel axis
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

  int64_t optimizer_step() const { return optimizer_step_; }
  int last_stage_rank() const { return placement_.rank_of(placement_.stages() - 1); }

 private:
  struct Part {
    std::unique_ptr<models::TransformerStage> stage;
    std::unique_ptr<optim::Optimizer> optimizer;
    std::vector<nn::Slice*> counted;  // that enter the norm: all but the copy of a tied weight
  };
  bool is_tied_copy(const nn::Slice& slice) const;
  void prepare_norm();

  RunContext& context_;
  const schedule::Schedule& placement_;
  std::vector<Part> parts_;
  std::optional<shard::GradNorm> norm_;
  int64_t optimizer_step_ = 0;
};

}  // namespace pptrain::app
