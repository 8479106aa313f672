// One rank's part of the model: its stages, their optimizers, and the exchanges with other ranks once a step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "app/plan/run_context.h"
#include "core/attention/cache.h"
#include "core/fault/memory_guard.h"
#include "core/kernels/exact_sum.h"
#include "core/nn/weight_grad_queue.h"
#include "core/optim/optimizer.h"
#include "models/transformer_stage.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/pipeline/head_exchange.h"
#include "parallel/pipeline/stage.h"
#include "parallel/schedule/schedule.h"
#include "parallel/shard/grad_norm.h"
#include "parallel/shard/stage_weights.h"

namespace pptrain::app {

// The use that a model is built for. Only training needs gradients and optimizers. Only generation, including
// samples in training, keeps the keys of earlier tokens.
enum class Purpose { train, evaluate, generate };

class RankModel {
 public:
  // Builds this rank's part of its stages of the plan and allocates it, without values. Collective, as is
  // everything here that exchanges.
  explicit RankModel(RunContext& context, Purpose purpose = Purpose::train);

  // One of this rank's stages.
  struct RankStage {
    std::unique_ptr<models::TransformerStage> stage;
    std::unique_ptr<shard::StageWeights> weights;
    std::shared_ptr<attention::CachedAttention> attention;  // if tokens are generated
    std::unique_ptr<optim::Optimizer> optimizer;            // if trained
    std::vector<nn::Slice*> counted;                        // those that enter the norm
  };
  std::span<const RankStage> stages() const { return stages_; }
  std::vector<pipeline::StageWithWeights> pipeline_stages() const;  // stages() as an executor takes them

  // Of a spread head, for executors; else null.
  pipeline::HeadLinks* head_links() const { return head_links_.get(); }

  // Values of a new run: from the seed, or from model.hf_dir.
  void initialise();
  // By checkpoint_contents.h: read_all and contents_of.
  void load(const checkpoint::Reader& reader, comm::Communicator& comm);
  std::vector<checkpoint::StageContents> contents() const;

  // For the steps from now on, [stage][microbatch]; instead of the job's levels.
  void recompute_by_microbatch(std::span<const std::vector<config::Recompute>> levels);

  void zero_grad();  // before a run of the schedule, whose end completes the gradients
  // Over the pipeline: sums the two gradients of a tied embedding; sends the gradient of a sharded embedding
  // to the ranks that own its shards.
  void exchange_embedding_gradients();
  kernels::ExactSum squared_norm();  // of the summed, unscaled gradients: this rank's term of norm()
  const shard::GradNorm& norm() const { return norm_; }  // over the whole model
  // `call` comes before each apply() and undo(), as do those of earlier calls; only these change what
  // contents() holds.
  void before_change(std::function<void()> call) { before_change_.push_back(std::move(call)); }
  void apply(double lr, double grad_scale);
  void keep_previous();  // from now on undo() can take the last apply() back
  void undo();
  // With train.check_weights: throws Error that names a parameter if masters or optimizer state have changed
  // since the last apply(), undo(), load() or initialise(). apply() and undo() check by themselves.
  void check_weights() const;

  // The loss since the last call, summed over all valid tokens of all ranks; the same on every rank.
  double global_loss();
  // The same over the data ranks of this pipeline's last stage; only its ranks call it.
  double last_stage_loss();
  // Sums a value over the ranks of the last stage, each of which has its part of the tokens; the same on
  // every rank. Other ranks' `own` is ignored. Collective.
  double sum_of_last_stage(double own);
  std::vector<double> sum_of_last_stage(std::vector<double> own);  // the same for several
  // What each of the microbatches of the last step, each in so many `parts`, added to the loss, summed over
  // all ranks' microbatches of this number; the same on every rank. Collective.
  std::vector<double> microbatch_losses(int64_t microbatches, int64_t parts);
  // The stage of this rank whose loss counts if the rank has the last stage: with a spread head, which gives
  // every rank the loss, the stage with a part of the head.
  models::TransformerStage& loss_stage() const;
  // For logits: until release_head() the last stage has all parts of a spread head, so that tokens need no
  // more messages than with a whole head. The stages' weights are unsharded. Collective.
  void gather_head();
  void release_head();
  bool has_last_stage() const { return context_.mesh.coordinate(mesh::Axis::pp) == last_stage_rank(); }

  // Loads in this rank's backward passes since the last call.
  std::map<int, at::Tensor> take_expert_loads();

  int64_t optimizer_step() const { return optimizer_step_; }
  int last_stage_rank() const { return schedule_.rank_of(schedule_.stages() - 1); }

  // For tests: replaces a stream of the device. It must outlive the model's passes.
  void overlap_weight_gradients(nn::SideStream& side);

 private:
  // [pipeline rank] The rank's rows of the head, counted within this tensor-parallel rank's rows: the first
  // one, and how many. If the head is whole, only the last stage's rank has rows.
  std::vector<std::pair<int64_t, int64_t>> head_rows() const;
  std::vector<nn::ElementRun> tied_elements() const;  // [pipeline rank] the same rows as elements
  void add_stage(int index, models::StageParallelism parallelism);
  void add_optimizer(RankStage& stage);
  bool generates() const;
  nn::ShardPlace shard_place(mesh::Group group);
  bool embedding_in_shards() const;
  void gather_embedding();  // if it is sharded, after its masters have changed
  shard::ShardRanks ranks_of(bool experts);
  void watch_weights();

  RunContext& context_;
  Purpose purpose_;
  const schedule::Schedule& schedule_;
  std::unique_ptr<comm::Communicator> kv_copies_;  // of tp: the ranks with this one's key-value heads
  std::unique_ptr<pipeline::HeadLinks> head_links_;
  std::unique_ptr<nn::SideStream> side_;  // null if B computes weight gradients on the same stream
  shard::GradientSums sums_;
  std::vector<RankStage> stages_;
  shard::GradNorm norm_;
  std::optional<fault::MemoryGuard> guard_;  // with train.check_weights
  int64_t optimizer_step_ = 0;
  std::vector<std::function<void()>> before_change_;
};

}  // namespace pptrain::app
