// Assembles a run and steps it.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "app/trace/step_profile.h"
#include "app/train/evaluator.h"
#include "app/train/load_sum.h"
#include "app/train/post_validation.h"
#include "app/train/rank_model.h"
#include "app/train/run_context.h"
#include "core/data/data_loader.h"
#include "core/fault/anomaly.h"
#include "core/fault/shutdown.h"
#include "core/metrics/sinks.h"
#include "core/optim/lr_schedule.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/pipeline/executor.h"

namespace pptrain::app {

class Trainer {
 public:
  // `shutdown` is asked between steps; it may be shared by all ranks of a process. Collective, as everything
  // here.
  Trainer(RunContext& context, const fault::Shutdown& shutdown);
  ~Trainer();

  // Trains to train.steps, or until a signal. Returns the exit code: 0 done, 3 stopped after saving.
  int run();

 private:
  struct Step {
    pipeline::LossSum loss;
    double norm = 0;        // of the gradient of the mean loss
    bool applied = false;   // else it is skipped
    double grad_scale = 0;  // what the optimizer multiplies the gradient of the loss sum by
  };

  void start();  // resumes, or initialises a new run; moves away what an earlier run left behind
  void open_sinks();
  void announce() const;
  void train_step();
  int64_t run_pipeline();  // of the next step; its labels that count, over all data ranks
  void zero_gradients();
  bool validate();  // the pending step; false if it was redone or skipped
  Step judge(const pipeline::LossSum& loss, double norm);  // norm: of the gradient of the loss sum
  std::string find_not_finite(double loss, double norm);   // "" where both are finite; warns elsewhere
  void settle(const Step& step, int64_t number, double seconds);
  void record(const Step& step, int64_t number, double seconds, const std::optional<metrics::Bubble>& bubble);
  bool due(int64_t interval) const { return interval > 0 && state_.step % interval == 0; }
  bool result_needed() const;  // of the step just run, before the next one can begin
  std::optional<double> evaluate();
  std::filesystem::path save();
  bool stop_requested();
  int finish(bool stopped, const std::optional<double>& eval_loss);

  RunContext& context_;
  const fault::Shutdown& shutdown_;
  std::filesystem::path checkpoint_root_;
  RankModel model_;
  data::DataLoader loader_;
  pipeline::Executor executor_;
  StepProfile profile_;
  std::optional<Evaluator> evaluator_;
  std::optional<PostValidation> post_validation_;
  std::optional<LoadSum> expert_loads_;  // of a model with experts
  double pending_seconds_ = 0;           // that the pending step took
  optim::LrSchedule lr_;
  fault::AnomalyGuard anomaly_;
  checkpoint::RunState state_;
  int64_t saved_step_ = -1;
  std::vector<std::unique_ptr<metrics::Sink>> sinks_;
  double flops_per_token_ = 0;
  double peak_flops_ = 0;  // of all ranks
};

}  // namespace pptrain::app
