// How a run stops when it is asked to: in order after the current step, or at once if the launcher does not
// wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "app/launch/launcher_patience.h"
#include "app/plan/run_context.h"
#include "app/run/run_dir.h"
#include "app/train/run_saver.h"
#include "app/train/step_listener.h"
#include "core/fault/shutdown.h"

namespace pptrain::app {

class QuickStop;  // saves the last finished step in the middle of the next one

class RunStop final : public StepListener {
 public:
  // Rank 0 prints what a signal will do. All references must outlive this; `state` is of the last finished
  // step. `saved`: the step of the newest checkpoint on disk at the start, 0 if none; only rank 0's counts.
  // Collective.
  RunStop(const RunContext& context, const fault::Shutdown& shutdown, const RunDir& run_dir, RunSaver& saver,
          const checkpoint::RunState& state, int64_t saved);
  // Does not return if a quick stop has begun: it ends the process.
  ~RunStop() override;
  RunStop(const RunStop&) = delete;
  RunStop& operator=(const RunStop&) = delete;

  void begin_step(int64_t step);
  // Does not return if a quick stop gives the step up.
  void begin_update(int64_t step) override;
  // The weights are those of state.step, until the next step's update begins. `diverged`: only the main
  // thread may save them, in its own way.
  void finished(const checkpoint::RunState& state, bool diverged);
  // The main thread saves the finished step now, or finds with all ranks that no save is due; until saved().
  // Does not return if a quick stop has begun to save it.
  void begin_save();
  void saved();
  // All ranks have agreed to stop after the finished step. After begin_save().
  void stopping();
  // The run has failed. Does not return if a quick stop has saved: then another rank's leaving caused the
  // failure.
  void failed();

 private:
  void announce(const fault::StopRequest& request) const;

  std::string lost_by_ending_at_once() const;

  const std::filesystem::path run_dir_;
  const fault::Shutdown& shutdown_;
  const RunSaver& saver_;
  const int64_t saved_before_;  // the step of the newest checkpoint on disk at the start; 0: none
  const bool is_root_;
  Patience patience_ = patience_of(comm::detect_launch());
  bool stops_quickly_;
  std::atomic<int64_t> under_way_;  // current step
  // Last: their threads use the rest.
  std::optional<fault::StopListener> signals_;  // of rank 0
  std::unique_ptr<QuickStop> quick_;            // if the launcher may not wait for the current step
};

}  // namespace pptrain::app
