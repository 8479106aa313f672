// Assembles a run and steps it.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "app/data/datasets.h"
#include "app/generate/sample_log.h"
#include "app/launch/launcher_patience.h"
#include "app/plan/run_context.h"
#include "app/rank/evaluator.h"
#include "app/rank/load_sum.h"
#include "app/rank/post_validation.h"
#include "app/rank/rank_model.h"
#include "app/run/live_requests.h"
#include "app/run/run_dir.h"
#include "app/run/run_log.h"
#include "app/run/step_profile.h"
#include "app/train/quick_stop.h"
#include "app/train/run_saver.h"
#include "core/data/data_loader.h"
#include "core/fault/anomaly.h"
#include "core/fault/divergence.h"
#include "core/fault/shutdown.h"
#include "core/metrics/peak_flops.h"
#include "core/metrics/sinks.h"
#include "core/optim/lr_schedule.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/pipeline/executor.h"

namespace pptrain::app {

class Trainer {
 public:
  // `shutdown` is asked between steps; it may be shared by all ranks of a process. Collective, as everything
  // here. Makes tokens of texts where that is still to be done; throws StoppedAtStart where it is
  // interrupted.
  Trainer(RunContext& context, const fault::Shutdown& shutdown);
  ~Trainer();

  // Trains to train.steps, or until a signal. Returns the exit code: 0 done, 3 stopped after saving.
  int run();

 private:
  // Seconds of a step, on this rank.
  struct Seconds {
    double whole = 0;
    double data_wait = 0;
    double save = 0;  // in which training stood still to save, since the step before
  };
  // What a step was given, over all data ranks.
  struct Given {
    int64_t valid_tokens = 0;  // labels that count
    int64_t tokens = 0;
    int64_t padding = 0;  // of these
  };
  struct Step {
    double loss = 0;        // mean over valid tokens, in nats
    double norm = 0;        // of the gradient of the mean loss
    bool applied = false;   // else it is skipped
    double grad_scale = 0;  // what the optimizer multiplies the gradient of the loss sum by
  };

  // What ranks were asked for, between steps.
  struct Wishes {
    bool stop = false;
    bool save = false;
  };

  void start();  // resumes, or initialises a new run
  void resume();
  void open_saver(const checkpoint::Layout& layout);
  void open_sinks(const checkpoint::Layout& layout);
  metrics::StepRecord so_far() const;
  int train();
  void warm_up();
  void train_step();
  Given run_pipeline();  // of the next step, whose samples are then taken
  void zero_gradients();
  bool validate();  // the pending step; false if it was redone or skipped
  // loss, norm: the loss summed over valid tokens, and the norm of its gradient.
  Step judge(double loss, double norm, const Given& given);
  std::string find_not_finite(double loss, double norm);  // "" where both are finite; warns elsewhere
  void settle(const Step& step, int64_t number, const Given& given, const Seconds& seconds);
  void record(const Step& step, int64_t number, const Given& given, const Seconds& seconds,
              const std::optional<metrics::Bubble>& bubble);
  bool due(int64_t interval) const { return interval > 0 && state_.step % interval == 0; }
  bool result_needed() const;  // of the step just run, before the next one can begin
  std::optional<double> evaluate();
  void save(bool is_last);
  bool may_save() const;  // this step, as far as all ranks know beforehand
  bool is_asked();        // on rank 0: there are requests
  Wishes agree_on_wishes();
  void listen();  // for who asks the run to stop: tells the user, and is ready for a launcher in a hurry
  void tell_of(const fault::StopRequest& request) const;
  void end_run_dir(const RunEnd& end);  // on rank 0
  void close_sinks();
  int finish(bool stopped, const std::optional<double>& eval_loss);
  int give_up();  // the run has diverged

  RunContext& context_;
  const fault::Shutdown& shutdown_;
  RunDir run_dir_;  // before what costs time and memory: a second start in the folder ends here
  std::optional<metrics::Listener>
      listener_;  // of rank 0, if metrics.prometheus is set; until there are sinks
  std::unique_ptr<comm::Communicator> disk_comm_;  // of the saver, and of what else waits for disks
  std::vector<OpenSource> sources_;                // of the data
  RankModel model_;
  data::DataLoader loader_;
  pipeline::Executor executor_;
  StepProfile profile_;
  std::optional<Evaluator> evaluator_;
  std::optional<SampleLog> samples_;
  std::optional<PostValidation> post_validation_;
  std::optional<LoadSum> expert_loads_;  // of a model with experts
  Given pending_given_;                  // of the pending step
  Seconds pending_seconds_;              // that it took
  double data_wait_ = 0;                 // of the step just run
  double stalled_ = 0;                   // s that saving took of training's time until the last step ended
  optim::LrSchedule lr_;
  fault::AnomalyGuard anomaly_;
  fault::DivergenceWatch divergence_;
  checkpoint::RunState state_;
  std::optional<LiveRequests> requests_;  // of rank 0, where the file system can lock
  bool stopped_on_request_ = false;
  std::optional<int64_t> resumed_at_;
  std::optional<RunSaver> saver_;  // whose thread answers requests
  std::vector<std::unique_ptr<metrics::Sink>> sinks_;
  double flops_per_token_ = 0;
  metrics::PeakRate peak_rate_;  // of all ranks
  Patience patience_ = patience_of(comm::detect_launch());
  bool stops_quickly_ = false;
  std::atomic<int64_t> under_way_ = 0;  // the step
  int64_t saved_quickly_ = 0;           // the step
  // Last: their threads use the rest.
  std::optional<fault::StopListener> stop_listener_;  // of rank 0
  std::optional<QuickStop> quick_stop_;  // where the launcher may not wait for the step under way
};

}  // namespace pptrain::app
