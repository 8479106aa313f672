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
  // `disk`: made by checkpoint::disk_communicator(). `options`: root, layout, keep and ended are used; the
  // rest is the job's. `state`: the run's; `is_saved` if it comes from a checkpoint. Equal on all ranks; the
  // references must outlive this.
  RunSaver(const RunContext& context, comm::Communicator& disk, RankModel& model,
           checkpoint::SaveOptions options, const checkpoint::RunState& state, bool is_saved);

  // Saves this step, unless it is saved already. First checks for memory that has changed since the last
  // update, before saving any of it. The last save of a run must succeed; an earlier one that fails is a
  // warning. Collective.
  void save(const checkpoint::RunState& state, bool is_last);

  // The same in the thread of a quick stop, over a communicator of its own; the main thread may be anywhere
  // between two updates. A running save, of this step or an earlier one, ends first. Returns what is saved
  // and its place.
  std::string save_quickly(comm::Communicator& world, const checkpoint::RunState& state);

  // Saves the state of a diverged run as diverged_step_N, and renames the checkpoints since state.above_since
  // likewise. Returns on rank 0 what is left, nothing elsewhere. Collective; waits until all is written.
  std::optional<DivergedCheckpoints> save_diverged(const checkpoint::RunState& state);

  // Every checkpoint.interval steps.
  bool is_due(int64_t step) const override;
  // On rank 0, whose clock counts: have checkpoint.minutes passed since the last save, or is the state's
  // validation loss among those of the checkpoint.keep_best_n best checkpoints?
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
  int64_t saved_step_;  // the last step whose save began
  std::chrono::steady_clock::time_point saved_at_;
  std::mutex mutex_;           // of scores_
  checkpoint::Scores scores_;  // rank 0: of steps whose save began
  checkpoint::Saver saver_;    // last: its thread uses the rest
};

}  // namespace pptrain::app
