// The run's folder: who has it, what a start finds there and goes on from, what is set aside for it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "app/plan/run_context.h"
#include "app/run/run_end.h"
#include "app/run/run_lock.h"
#include "app/run/start_choice.h"
#include "core/metrics/step_record.h"
#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::app {

class RunDir {
 public:
  // Takes run.dir for this run and decides what it starts from; touches nothing else there. Rank 0 does it
  // and tells the others. Collective. Rank 0 throws Error where another run has the folder, nothing can be
  // written, or no checkpoint can be read that should be; all ranks throw CommonFault where the job may not
  // go on from the checkpoint (resume_check.h).
  explicit RunDir(RunContext& context);

  // The checkpoint to load; empty: a new model. The same on every rank.
  const std::string& checkpoint() const { return checkpoint_; }

  // The checkpoint was found to be unusable as it was loaded: another one is chosen. Throws where there is
  // none. Collective.
  void pass_over(const std::string& problem);

  // Rank 0: the checkpoint that the job names in checkpoint.resume, which stays whatever keep_last_n says;
  // empty where it names none.
  std::filesystem::path begun_from() const;

  // Where the checkpoint's run goes on under this job: its sample and seed are others where the data are.
  checkpoint::RunState adopt(checkpoint::RunState state) const;

  // Rank 0, once the model is loaded: checkpoints, metrics and traces that the run which begins at `step`
  // would meet move aside, and job.toml becomes this job's. Nothing is deleted. Prints what moved and what
  // differs.
  void begin(int64_t step);

  // Rank 0: how the run ends, for those who look at the folder. Of a start that has not begun nothing is
  // said. What cannot be written is a warning.
  void end(RunEnd end) const noexcept;

  // Rank 0: this process as the lock has it; nothing where the file system cannot lock.
  const std::optional<LockHolder>& holder() const { return lock_.own(); }

  // Rank 0: the fingerprint of the training data.
  const std::string& data() const { return data_; }

  // Rank 0: the first line of this start in metrics.jsonl.
  metrics::RunHeader header(int64_t step, const checkpoint::Layout& layout) const;

 private:
  void take_lock();
  void agree();   // all ranks, on what rank 0 chooses
  void choose();  // rank 0

  RunContext& context_;
  std::unique_ptr<comm::Communicator> disk_;  // waits as long as rank 0's disk takes
  std::filesystem::path folder_;
  RunLock lock_;
  checkpoint::KnownProblems known_;  // rank 0
  StartChoice choice_;
  ResumeTerms terms_;
  std::string checkpoint_, data_;
  bool begun_ = false;
  bool new_data_ = false;  // of terms_, on every rank
  int64_t next_sample_ = 0;
};

}  // namespace pptrain::app
