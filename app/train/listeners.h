// Listeners of a run's steps: metrics, evaluation, samples of text, and the watch for divergence.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "app/data/datasets.h"
#include "app/forecast/core_sharing.h"
#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "app/run/step_profile.h"
#include "app/train/run_saver.h"
#include "app/train/step_listener.h"
#include "core/config/job_config.h"
#include "core/data/data_loader.h"
#include "core/fault/loss_watch.h"
#include "core/metrics/sinks.h"
#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::app {

// Rank 0 writes each step to the sinks that the job names.
class RunMetrics final : public StepListener {
 public:
  // All ranks throw CommonFault if rank 0 cannot write metrics.prometheus_file. Collective. Both must outlive
  // this. `sharing`: of the ranks' cores, as rank 0 knows it.
  RunMetrics(RunContext& context, const checkpoint::RunState& state, const CoreSharing& sharing);

  // Opens the sinks on rank 0. `header`: of this start; `saved`: the step of the newest checkpoint on
  // disk, of a run that goes on. Throws Error that names a file that cannot be written. The references must
  // outlive this.
  void open(const metrics::RunHeader& header, const std::vector<OpenSource>& sources,
            const data::DataLoader& loader, const RunSaver& saver, std::optional<int64_t> saved);
  // Closes the sinks in good order: nothing follows.
  void close();

  void settled(const StepResult& result) override;
  void evaluated(const metrics::EvalRecord& record);
  // During its lifetime the sinks show that the run does `what`.
  metrics::PhaseNote note(std::string_view what) const { return {sinks_, what}; }

 private:
  metrics::StepRecord so_far() const;  // the run as a whole
  metrics::StepRecord record(const StepResult& result);

  RunContext& context_;
  const checkpoint::RunState& state_;
  CoreSharing sharing_;
  const std::vector<OpenSource>* sources_ = nullptr;
  const data::DataLoader* loader_ = nullptr;
  const RunSaver* saver_ = nullptr;
  std::optional<int64_t> saved_before_;
  std::vector<std::unique_ptr<metrics::Sink>> sinks_;
  double flops_per_token_;
  double peak_flops_ = 0;  // FLOP/s of all ranks
  double stalled_ = 0;     // s that saving took of training's time until the last step ended
};

// Rank 0 logs when steps get slower than planned, and why (pace.json). Every reference must outlive it; this
// holds for the following functions too.
std::unique_ptr<StepListener> make_pace_watch(const RunContext& context, const StepProfile& profile,
                                              const CoreSharing& sharing);

// Validates every eval.interval steps (0: never), and after the last one. Writes the loss into the state.
std::unique_ptr<StepListener> make_evaluation(RunContext& context, RankModel& model,
                                              const std::vector<OpenSource>& sources, StepProfile& profile,
                                              RunMetrics& metrics, checkpoint::RunState& state);

// Every eval.generate_interval steps generates eval.generate_tokens tokens after eval.generate_prompt; rank 0
// logs the text. The random numbers are the same in every step. Changes nothing that training reads.
std::unique_ptr<StepListener> make_samples(RunContext& context, RankModel& model, StepProfile& profile,
                                           const checkpoint::RunState& state);

// Watches for losses that leave their band and stay above it. Its state is part of the run's, which
// checkpoints hold.
class Divergence final : public StepListener {
 public:
  Divergence(const config::TrainSection& train, checkpoint::RunState& state);

  // The state comes from a checkpoint.
  void restore();
  void settled(const StepResult& result) override;
  bool is_due(int64_t step) const override;  // the run may end here
  bool diverged() const { return watch_.diverged(); }
  // For the user of a run that has diverged.
  std::string report(const DivergedCheckpoints& left) const;
  // The same of a run that goes back. number: of the rollback, from 1.
  std::string rollback_report(const DivergedCheckpoints& left, int64_t number) const;

 private:
  std::string what_is_left(const DivergedCheckpoints& left) const;

  fault::DivergenceWatch watch_;
  const config::TrainSection& train_;
  checkpoint::RunState& state_;
};

}  // namespace pptrain::app
