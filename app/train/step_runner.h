// Steps the optimizer: data, pipeline, loss and gradient norm, then the update or a skip.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "app/forecast/stage_choices.h"
#include "app/plan/run_context.h"
#include "app/rank/post_validation.h"
#include "app/rank/rank_model.h"
#include "app/run/step_profile.h"
#include "app/train/step_listener.h"
#include "core/data/data_loader.h"
#include "core/fault/loss_watch.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/pipeline/executor.h"

namespace pptrain::app {

class LoadSum;

class StepRunner {
 public:
  // Makes the loader of steps with so many microbatches.
  using MakeLoader = std::function<data::DataLoader(int64_t microbatches)>;

  // Everything must outlive this; `listeners` may grow until the first step. `loader`: of the job's first
  // steps; steps of other sizes replace it by make_loader's. Collective, as is run().
  StepRunner(RunContext& context, RankModel& model, data::DataLoader& loader, MakeLoader make_loader,
             checkpoint::RunState& state, const std::vector<StepListener*>& listeners);
  ~StepRunner();

  // The state comes from a checkpoint.
  void restore() { anomaly_.restore(state_.skipped_in_a_row, state_.skipped); }

  // Runs step state.step + 1 and updates the state. `is_asked`: does this rank want a stop or a save?
  void run(const std::function<bool()>& is_asked);
  // The last step's result is known only within the next one (post-validation).
  bool pending() const { return post_validation_ && post_validation_->pending(); }
  // All ranks have agreed on what a rank asked for.
  void answered();

  StepProfile& profile() { return profile_; }

 private:
  bool result_needed() const;  // of this step, before the next one can begin
  std::unique_ptr<pipeline::Executor> make_executor(const Plan& plan);
  void follow_batch_size();   // of the next step
  StepResult run_pipeline();  // of the next step; then its samples are taken
  void zero_gradients();
  bool validate();  // the pending step; false if it was redone or skipped
  // loss, norm: the loss summed over valid tokens, and the norm of its gradient.
  void judge(StepResult& step, double loss, double norm);
  std::string find_not_finite(double loss, double norm);  // "" if both are finite, else warns
  void settle(StepResult step);

  RunContext& context_;
  RankModel& model_;
  data::DataLoader& loader_;
  MakeLoader make_loader_;
  checkpoint::RunState& state_;
  const std::vector<StepListener*>& listeners_;
  int64_t microbatches_;       // of the steps that executor_ and loader_ run
  std::optional<Plan> later_;  // theirs, if they are not the job's first steps
  std::unique_ptr<pipeline::Executor> executor_;
  StepRecompute recompute_;  // empty if all steps recompute alike
  StepProfile profile_;
  std::optional<PostValidation> post_validation_;
  std::unique_ptr<LoadSum> expert_loads_;  // of a model with experts
  fault::AnomalyGuard anomaly_;
  StepResult pending_;
};

}  // namespace pptrain::app
