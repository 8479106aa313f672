// The holder of a run.dir: one run at a time; and how the last one ended.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "core/io/files.h"

namespace pptrain::app {

// The holder of a lock, as in the lock's file.
struct LockHolder {
  int64_t pid = 0;
  std::string host, since, command;
  std::string elastic = {};  // the run of scripts/elastic.sh that it belongs to; "" for none

  std::string describe() const;  // "process 17 on node3, since ... (pptrain --config job.toml)"

  // Whether both are one process, even with different commands.
  bool same_process(const LockHolder& other) const {
    return pid == other.pid && host == other.host && since == other.since;
  }
};

// Whether a run has FOLDER/lock, seen from outside.
struct LockState {
  std::optional<bool> held = false;  // nothing: the file system cannot lock
  // As in the file. If `held` is false, it is the last run, which was killed.
  std::optional<LockHolder> holder;
};

// Looks without taking the lock, so that it does not disturb a start. Throws Error if the file is there and
// cannot be read.
LockState look_at_lock(const std::filesystem::path& folder);

// Locks all of an open file for writing, without waiting. Returns 0, or EAGAIN if another process has it, or
// why the file system cannot lock it (ENOLCK, EOPNOTSUPP, ...).
int lock_whole_file(int fd);

// A write lock on FOLDER/lock, which holds the LockHolder as JSON. The system drops it when the process ends,
// in whatever way. It is an open file description lock (fcntl_locking(2)): it works on NFS and between
// threads of one process, and survives closing another descriptor of the file. If the kernel has none for
// this file system, it is a POSIX lock, which only keeps out other processes.
class RunLock {
 public:
  RunLock() = default;
  ~RunLock();  // empties the file; it stays, since deleting it would let two processes lock two files
  RunLock(RunLock&&) = default;
  RunLock& operator=(RunLock&&) = default;

  // One attempt. True: this process has the folder now. A lock that a process of the same run of
  // scripts/elastic.sh has on another host is replaced: that run has its processes anew, so the other one is
  // dead or cut off (more than half of the hosts are here), though an NFS server keeps its lock for a while.
  // If it lives, is_in() tells it. Calls `warn` if the file system cannot lock: then nothing keeps a second
  // run out. Throws Error if the file cannot be opened.
  bool try_take(const std::filesystem::path& folder, const std::function<void(const std::string&)>& warn,
                const std::function<int(int)>& lock_file = lock_whole_file);

  // Whether FOLDER/lock still is the file that this took: false once the folder was deleted, moved or
  // replaced. True if that is not known, and before anything was taken.
  bool is_in(const std::filesystem::path& folder) const;

  // This process, as in its lock's file; nothing if it holds none.
  const std::optional<LockHolder>& own() const { return own_; }

  // The holder of the lock that the last attempt met; nothing if its file names none.
  const std::optional<LockHolder>& holder() const { return holder_; }

 private:
  FileDescriptor file_;
  dev_t device_ = 0;  // of the file, with
  ino_t inode_ = 0;   // 0: nothing was taken
  std::optional<LockHolder> holder_, own_;
};

// How long to wait for the lock of a process on this host or another one. A dead process holds none, but an
// NFS server keeps the locks of a crashed host until its lease is over, usually 90 s. A run that is restarted
// at once must not fail because of that.
std::chrono::seconds patience(const std::optional<LockHolder>& holder);

// Tells the user that the folder is taken.
std::string taken_message(const std::filesystem::path& folder, const std::optional<LockHolder>& holder);

enum class RunPhase {
  starting,     // a run has the folder and has written no metrics yet
  running,      // a run has the folder
  finished,     // at train.steps
  stopped,      // by a signal or a request, after saving
  diverged,     // stopped itself: train.divergence_steps
  failed,       // with an error, which log.txt has; or before it had begun
  dead,         // no run has the folder, and the last one left no end: it was killed
  cannot_tell,  // the file system cannot lock, and there is no end
};

std::string word_of(RunPhase phase);  // "starting"; cannot_tell is "unknown"

// How the last run in a folder ended: FOLDER/end.json. The file exists from the end of a run until the next
// one begins; a killed run leaves none.
struct RunEnd {
  RunPhase how = RunPhase::failed;  // finished | stopped | diverged | failed
  int64_t step = 0;
  std::string checkpoint = {};  // the folder's name, "step_120"; empty: nothing was saved at the end
  std::string message = {};     // of a failure or a divergence
  LockHolder process = {};      // the process that ended; pid 0 if the file system cannot lock
};

// Replaces the file. Throws Error that names it.
void write_run_end(const std::filesystem::path& folder, const RunEnd& end);

// Nothing if no such file can be read.
std::optional<RunEnd> read_run_end(const std::filesystem::path& folder);

// Why a run may be about to die, in FOLDER/last_words.txt. A dead run has it instead of an end, a failed run
// in addition to it. Writing another end removes it. A failure to write is a warning; "" if there are none.
void note_last_words(const std::filesystem::path& folder, const std::string& text) noexcept;
std::string read_last_words(const std::filesystem::path& folder);

// A run begins: removes the end and the last words of the previous run.
void forget_run_end(const std::filesystem::path& folder);

}  // namespace pptrain::app
