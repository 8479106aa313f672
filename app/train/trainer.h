// Assembles a run and steps it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "app/data/datasets.h"
#include "app/launch/core_check.h"
#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "app/run/requests.h"
#include "app/run/run_dir.h"
#include "app/train/listeners.h"
#include "app/train/memory_saver.h"
#include "app/train/run_saver.h"
#include "app/train/run_stop.h"
#include "app/train/step_listener.h"
#include "app/train/step_runner.h"
#include "core/data/data_loader.h"
#include "core/fault/shutdown.h"
#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::app {

class Trainer {
 public:
  // Asks `shutdown` between steps; all ranks of a process may share it. Collective, as is everything here.
  // Tokenizes text that is not tokenized yet; throws StoppedAtStart if that is interrupted.
  Trainer(RunContext& context, const fault::Shutdown& shutdown);
  ~Trainer();

  // Trains to train.steps, or until a signal. Returns the exit code: 0 done, 3 stopped after saving. Nothing
  // if the run goes back (train.max_rollbacks): another Trainer goes on from there.
  std::optional<int> run();

 private:
  bool start();  // resumes, or initialises a new run; returns whether it resumed
  void resume();
  void open(bool resumed);  // folder, log, saver, metrics, requests, signals
  // In memory. shortage: why there is no room for them; "": there is.
  void open_copies(const checkpoint::Layout& layout, std::string shortage);
  std::optional<int> train();
  void warm_up();
  void save(bool is_last);
  struct StopOrSave;
  StopOrSave wants();                   // of this rank
  StopOrSave agree();                   // of all ranks
  void end_run_dir(const RunEnd& end);  // on rank 0
  // `rescue`: the run's folder is gone; `give_up`: the run has diverged; `stop`: before its last step.
  enum class AfterStep { next, rescue, give_up, stop, end };
  AfterStep after_step();
  int rescue();
  int finish(bool stopped);
  void remove_copies();  // in memory
  std::optional<int> give_up();
  bool goes_back(const std::optional<DivergedCheckpoints>& left);
  int stop_diverged(const std::optional<DivergedCheckpoints>& left);

  RunContext& context_;
  const fault::Shutdown& shutdown_;
  RunDir run_dir_;  // before costly members: a second start in the folder ends here
  checkpoint::RunState state_;
  std::vector<RankCores> cores_;  // by rank, on rank 0
  RunMetrics metrics_;
  std::unique_ptr<comm::Communicator> disk_comm_;  // of the saver and others that wait for disks
  std::vector<OpenSource> sources_;                // of the data
  RankModel model_;
  data::DataLoader loader_;
  std::vector<StepListener*> listeners_;
  StepRunner steps_;
  Divergence divergence_;
  std::unique_ptr<StepListener> pace_;
  std::vector<std::unique_ptr<StepListener>> between_steps_;  // evaluation and samples
  std::optional<LiveRequests> requests_;                      // of rank 0, if the file system can lock
  std::optional<RunSaver> saver_;                             // its thread answers requests
  std::optional<MemorySaver> copies_;                         // with checkpoint.memory_seconds
  std::optional<RunStop> stop_;                               // last: its threads use the rest
  bool stopped_on_request_ = false;
  bool stop_agreed_ = false;  // after the last step
  bool signalled_ = false;    // a rank was, so a launcher may want the run to go on elsewhere
};

// Trains until the run ends, however often it goes back. Returns the exit code. Collective.
int train_to_end(RunContext& context, const fault::Shutdown& shutdown);

}  // namespace pptrain::app
