// Saves while training goes on: a thread of each rank writes the tensors as they were at the step saved.
#pragma once

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/snapshot.h"

namespace pptrain::checkpoint {

// The saves of a run, one at a time. All ranks call start() and finish() alike.
class Saver {
 public:
  // comm: the result of disk_communicator(). While a save is under way, only the saver's thread uses it.
  // background: start() returns at once; otherwise when all is written. newest: the name of the checkpoint
  // under options.root that the run goes on from; "" for none.
  Saver(comm::Communicator& comm, SaveOptions options, bool background, std::string newest = {});
  // Waits for the save under way. If an exception unwinds this rank, it gives the save some minutes, then
  // aborts.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Begins to save the tensors as they are now, after the save before has ended, with or without success. A
  // failed save is a line of the log and no exception, since training can go on and a later one may succeed.
  // Only the failure of a run's last save ends it: finish() reports that. Throws what is not a failure to
  // save: another rank is gone.
  // terms.is_last: finish() follows at once, and reports the result.
  void start(const RunState& state, std::vector<StageContents> stages, SaveTerms terms = {});

  // The caller calls it before tensors that were passed to start() change: copies what is not written yet.
  // Cheap if all is written.
  void protect();

  // Waits for the save under way. Throws NotSaved, on all ranks, if the last one failed.
  void finish();

  // Seconds of training time that start(), protect() and finish() took so far.
  double stalled_seconds() const { return stalled_; }
  // The name of the newest checkpoint that this object has saved, else the one that the run went on from; ""
  // for none. After finish().
  const std::string& newest() const { return newest_; }
  bool busy() const;  // a save is under way
  // On rank 0: the step of the newest checkpoint that this object has completed; -1 before that.
  int64_t saved_step() const { return saved_step_; }
  uint64_t copied_bytes() const { return copied_; }  // by protect(), of all saves that have ended

 private:
  struct Job;
  void run(Job& job);
  void collect();

  comm::Communicator& comm_;
  SaveOptions options_;
  bool background_;
  std::optional<c10::Stream> copies_stream_;  // on a GPU
  std::unique_ptr<Job> job_;                  // until the next one starts
  std::future<void> done_;
  std::optional<std::string> failure_;  // of the last save
  std::string newest_;
  std::atomic<int64_t> saved_step_ = -1;
  uint64_t copied_ = 0;
  double stalled_ = 0;
};

}  // namespace pptrain::checkpoint
