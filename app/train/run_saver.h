// When and how a run saves: what is due, which checkpoints are worth keeping, what is told of a save.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "app/train/divergence_report.h"
#include "parallel/checkpoint/saver.h"

namespace pptrain::app {

class RunSaver {
 public:
  // `disk`: what checkpoint::patient() gives. `options`: root, layout, keep and ended are used; the rest is
  // the job's. `state`: what the run begins with. `is_saved`: that lies in a checkpoint. All ranks alike;
  // the references must outlive this.
  RunSaver(const RunContext& context, comm::Communicator& disk, RankModel& model,
           checkpoint::SaveOptions options, const checkpoint::RunState& state, bool is_saved);

  // Saves this step, unless it is saved already. What the memory lost since the last update is found before
  // anything of it is saved. The last save of a run must succeed; one before it that fails is told, and the
  // next may succeed. Collective.
  void save(const checkpoint::RunState& state, bool is_last);

  // The same in the thread of a quick stop, over a communicator of its own, while the main thread may be
  // anywhere between two updates. What is under way is of this step or an earlier one: it ends first. Says
  // what is saved where.
  std::string save_quickly(comm::Communicator& world, const checkpoint::RunState& state);

  // The state of a run that diverged, as diverged_step_N; the checkpoints since state.above_since become such
  // too. Tells on rank 0 what is left, nothing elsewhere. Collective; waits until all is written.
  std::optional<DivergedCheckpoints> save_diverged(const checkpoint::RunState& state);

  // On rank 0, whose clock counts: checkpoint.minutes have passed since the last save.
  bool is_late() const;
  // On rank 0: the state's validation loss is among those of the checkpoint.keep_best_n best checkpoints.
  bool is_among_best(const checkpoint::RunState& state);

  double stalled_seconds() const { return saver_.stalled_seconds(); }
  // On rank 0: the step of the newest checkpoint of this start; -1 before there is one.
  int64_t saved_step() const { return saver_.saved_step(); }
  const std::filesystem::path& root() const { return options_.root; }

 private:
  checkpoint::SaveTerms terms(const checkpoint::RunState& state, bool is_last);
  void forget_lost();

  const RunContext& context_;
  RankModel& model_;
  checkpoint::SaveOptions options_;
  int64_t saved_step_;  // begun to be saved
  std::chrono::steady_clock::time_point saved_at_;
  std::mutex mutex_;                            // of scored_
  std::vector<checkpoint::ScoredStep> scored_;  // rank 0: of what is saved or begun to be
  checkpoint::Saver saver_;                     // last: its thread uses the rest
};

}  // namespace pptrain::app
