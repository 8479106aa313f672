// The run's folder: a start takes it, chooses what to go on from, and sets the rest aside.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/launch/memory_folder.h"
#include "app/plan/run_context.h"
#include "app/run/rollbacks.h"
#include "app/run/run_lock.h"
#include "app/run/start_choice.h"
#include "core/metrics/step_record.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/hosts.h"

namespace pptrain::app {

class RunDir {
 public:
  // Takes run.dir for this run and decides what it starts from; touches nothing else there. Rank 0 does it
  // and tells the others. Collective. Rank 0 throws Error if another run has the folder, if nothing can be
  // written, or if a required checkpoint cannot be read. All ranks throw CommonFault if the job may not go on
  // from the checkpoint (check_resume).
  explicit RunDir(RunContext& context);

  // The checkpoint to load; empty: a new model. The same on every rank.
  const std::string& checkpoint() const { return start_.checkpoint; }
  // It does not lie in memory alone.
  bool is_from_disk() const { return !memory_.contains(start_.checkpoint); }

  // The step of the newest checkpoint on disk when this start goes on from `step`, which may be of a copy in
  // memory. Nothing if there is none.
  std::optional<int64_t> saved_until(int64_t step) const;

  // Does the run in the folder go on? Otherwise what it left is set aside.
  bool goes_on() const { return goes_on_; }

  // This host's copies of the run's states, and which ranks see them.
  const MemoryFolder& memory() const { return memory_; }
  // For SaveOptions::before_publish: a state that exists has its steps in metrics.jsonl, even after a power
  // cut.
  std::function<void()> sync_metrics() const;
  const checkpoint::Hosts& memory_hosts() const { return memory_hosts_; }
  bool has_copy_before(int64_t step) const;
  // The run has ended: its copies go. Called by all ranks.
  void remove_copies() const;
  // The run goes on from `step` (0: begins anew): copies of later steps go, which hosts that were away may
  // know. Called by all ranks.
  void remove_copies_after(int64_t step) const;

  // Chooses another checkpoint, as this one proved unusable at loading. Throws if there is none. Collective.
  void pass_over(const std::string& problem);

  // Rank 0: the checkpoint that the job names in checkpoint.resume, kept whatever keep_last_n says; empty if
  // it names none.
  std::filesystem::path begun_from() const;

  // The checkpoint's state under this job: with other data, sample and seed change, and after a rollback the
  // sample does.
  checkpoint::RunState adopt(checkpoint::RunState state) const;

  // Of this run, as at its start. The same on every rank.
  const std::vector<Rollback>& rollbacks() const { return rollbacks_; }

  // Rank 0, once the model is loaded: moves aside the checkpoints, metrics and traces that a run from `step`
  // on would overwrite, and writes this job's job.toml and resolved.toml. Deletes nothing. Prints what it
  // moved and what differs.
  void begin(int64_t step);

  // Rank 0: is the folder still the one that this run took, neither deleted nor moved?
  bool is_there() const { return lock_.is_in(folder_); }

  // Rank 0, if is_there() is false: makes the folder anew and takes it, so that the run can save its state.
  // Throws Error if another run's folder is in its place.
  void make_anew(int64_t step);

  // Rank 0: writes how the run ends, unless it has not begun. A failure to write is a warning.
  void end(RunEnd end) const noexcept;

  // Rank 0, at a start that has no steps left: ends the run if it was killed, or failed, after its last save
  // and before its end. Otherwise does nothing.
  void end_killed_run(int64_t step);

  // Rank 0: this process as in the lock; nothing if the file system cannot lock.
  const std::optional<LockHolder>& holder() const { return lock_.own(); }

  // Rank 0: the fingerprint of the training data.
  const std::string& data() const { return data_; }
  // Rank 0: the source of frozen weights.
  const Base& base() const { return base_; }

  // Rank 0: the first line of this start in metrics.jsonl.
  metrics::RunHeader header(int64_t step, const checkpoint::Layout& layout) const;

 private:
  void take_lock();
  void count_start() const;
  void bring_copies();  // of a step that is newer than the disk's to hosts that lack some of it. Collective
  void agree();         // all ranks, on what rank 0 chooses
  void choose();        // rank 0
  void write_job() const;

  RunContext& context_;
  std::unique_ptr<comm::Communicator> disk_;  // waits as long as rank 0's disk takes
  std::filesystem::path folder_;
  MemoryFolder memory_;
  checkpoint::Hosts memory_hosts_;
  RunLock lock_;
  checkpoint::KnownProblems known_;  // rank 0
  Start start_;                      // its words: rank 0
  bool goes_on_ = false;
  std::string data_;
  Base base_;
  std::vector<Rollback> rollbacks_;
  std::vector<Rollback> origins_rollbacks_;  // of the run whose checkpoint checkpoint.resume names
  bool begun_ = false;
};

// --- Makes room for a start in a folder without losing anything of earlier ones. All functions report what
// they moved and throw Error that names what cannot be moved.

// Makes sure that there is a folder for checkpoints, and that neither it nor metrics.jsonl has a step after
// `kept`, from which the next run goes on (nothing: has any step). The rest moves to checkpoints.1 and so on,
// the newest last: a crash in between leaves it the newest. Metrics move to metrics.repeated.jsonl, or if no
// step is kept to metrics.1.jsonl and so on.
void make_room(const std::filesystem::path& folder, std::optional<int64_t> kept, const Report& report);

// Moves `file`, if it is there, to a numbered name: trace.json to trace.1.json.
void make_room_for_file(const std::filesystem::path& file, const Report& report);
// The same without a word; but if a numbered file holds the same text, `file` is removed. A run whose hosts
// come and go has few different texts.
void set_aside_once(const std::filesystem::path& file);

// Writes the job, or a schedule, to `file`. A different one there is kept as job.1.toml, job.2.toml, ..., the
// oldest first.
void keep_job(const std::filesystem::path& file, const std::string& job);

}  // namespace pptrain::app
