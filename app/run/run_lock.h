// One run at a time in a run.dir.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "core/io/files.h"

namespace pptrain::app {

// Who holds a lock, as its file says.
struct LockHolder {
  int64_t pid = 0;
  std::string host, since, command;

  std::string describe() const;  // "process 17 on node3, since ... (pptrain --config job.toml)"

  // Whether both are one process, whatever its command.
  bool same_process(const LockHolder& other) const {
    return pid == other.pid && host == other.host && since == other.since;
  }
};

// Whether a run has FOLDER/lock, seen from outside.
struct LockState {
  enum class Held { yes, no, cannot_tell };  // cannot_tell: the file system cannot lock
  Held held = Held::no;
  std::optional<LockHolder>
      holder;  // as the file says; of the last run, where `held` is no and it was killed
};

// Looks without taking the lock, so that nobody who starts meanwhile is disturbed. Throws Error where the
// file is there and cannot be read.
LockState look_at_lock(const std::filesystem::path& folder);

// Locks all of an open file for writing, without waiting. Returns 0, EAGAIN where somebody else has it, or
// why the file system cannot lock it (ENOLCK, EOPNOTSUPP, ...).
int lock_whole_file(int fd);

// A write lock on FOLDER/lock, which holds the LockHolder as JSON. The system drops it when the process ends,
// in whatever way. It is an open file description lock (fcntl_locking(2)): it works on NFS, between threads
// of one process too, and is not lost when another descriptor of the file is closed; where the kernel has
// none for this file system, a POSIX lock, which keeps out other processes alone.
class RunLock {
 public:
  RunLock() = default;
  ~RunLock();  // empties the file; it stays, since deleting it would let two processes lock two files
  RunLock(RunLock&&) = default;
  RunLock& operator=(RunLock&&) = default;

  // One attempt: true where this process has the folder now. `warn` hears where the file system cannot lock:
  // then nothing keeps a second run out. Throws Error where the file cannot be opened.
  bool try_take(const std::filesystem::path& folder, const std::function<void(const std::string&)>& warn,
                const std::function<int(int)>& lock_file = lock_whole_file);

  // This process, as the lock that it holds says; nothing where it holds none.
  const std::optional<LockHolder>& own() const { return own_; }

  // Of the lock that the last attempt met; nothing where its file does not say.
  const std::optional<LockHolder>& holder() const { return holder_; }

 private:
  FileDescriptor file_;
  std::optional<LockHolder> holder_, own_;
};

// How long to wait for the lock of a process on this host or another one. A process that is gone holds none,
// but an NFS server keeps those of a host that crashed until its lease is over, 90 s as a rule; a run that is
// started again at once must not fail because of that.
std::chrono::seconds patience(const std::optional<LockHolder>& holder);

// What the user of a folder that is taken is told.
std::string taken_message(const std::filesystem::path& folder, const std::optional<LockHolder>& holder);

}  // namespace pptrain::app
