// When and how a run saves: what is due, and which checkpoints are worth keeping.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>

#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "app/train/step_listener.h"
#include "parallel/checkpoint/saver.h"

namespace pptrain::app {

// The name of a step's checkpoint; "" before the first step.
std::string checkpoint_name(int64_t step);

struct DivergedCheckpoints {
  std::string saved;            // the folder's name, "diverged_step_520"; "": it could not be saved
  std::string failure;          // why
  std::filesystem::path sound;  // the newest checkpoint from before the loss left its band; "": none
};

class RunSaver final : public StepListener {
 public:
  // `disk`: what checkpoint::patient() gives. `options`: root, layout, keep and ended are used; the rest is
  // the job's. `state`: the run's, which `is_saved` if it begins with a checkpoint. All ranks alike; the
  // references must outlive this.
  RunSaver(const RunContext& context, comm::Communicator& disk, RankModel& model,
           checkpoint::SaveOptions options, const checkpoint::RunState& state, bool is_saved);

  // Saves this step, unless it is saved already. What the memory lost since the last update is found before
  // anything of it is saved. The last save of a run must succeed; an earlier one that fails is a warning.
  // Collective.
  void save(const checkpoint::RunState& state, bool is_last);

  // The same in the thread of a quick stop, over a communicator of its own, while the main thread may be
  // anywhere between two updates. What is under way is of this step or an earlier one: it ends first. Says
  // what is saved where.
  std::string save_quickly(comm::Communicator& world, const checkpoint::RunState& state);

  // The state of a run that diverged, as diverged_step_N; the checkpoints since state.above_since become such
  // too. Tells on rank 0 what is left, nothing elsewhere. Collective; waits until all is written.
  std::optional<DivergedCheckpoints> save_diverged(const checkpoint::RunState& state);

  // Every checkpoint.interval steps.
  bool is_due(int64_t step) const override;
  // On rank 0, whose clock counts: checkpoint.minutes have passed since the last save, or the state's
  // validation loss is among those of the checkpoint.keep_best_n best checkpoints.
  bool wants_save();

  double stalled_seconds() const { return saver_.stalled_seconds(); }
  // On rank 0: the step of the newest checkpoint of this start; -1 before there is one.
  int64_t saved_step() const { return saver_.saved_step(); }
  const std::filesystem::path& root() const { return options_.root; }

 private:
  checkpoint::SaveTerms terms(const checkpoint::RunState& state, bool is_last);
  bool is_late() const;
  bool is_among_best();
  void forget_lost();

  const RunContext& context_;
  RankModel& model_;
  const checkpoint::RunState& state_;
  checkpoint::SaveOptions options_;
  int64_t saved_step_;  // begun to be saved
  std::chrono::steady_clock::time_point saved_at_;
  std::mutex mutex_;           // of scores_
  checkpoint::Scores scores_;  // rank 0: of what is saved or begun to be
  checkpoint::Saver saver_;    // last: its thread uses the rest
};

}  // namespace pptrain::app
