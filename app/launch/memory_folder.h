// Where a run keeps copies of its newest states in the host's memory (checkpoint.memory_seconds):
// checkpoints, in /dev/shm. A start of the same run finds them there; another run in the same run.dir does
// not, since both folders have the same id.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "core/base/host_memory.h"

namespace pptrain::app {

// A run's folder of copies on this host.
class MemoryFolder {
 public:
  // memory: a file system of this host alone.
  explicit MemoryFolder(std::filesystem::path run_dir, std::filesystem::path memory = memory_file_system);

  // MEMORY/pptrain-UID/HASH, by the real path of run.dir.
  const std::filesystem::path& path() const { return path_; }
  // The name of what path() is in: two ranks that give the same one see one folder.
  std::string place() const;

  // Whether it has copies of the run in run.dir.
  bool holds_copies() const;
  // Whether this checkpoint's folder is one of the copies.
  bool contains(const std::filesystem::path& step_folder) const { return step_folder.parent_path() == path_; }

  // The run's id, from run.dir; "" if the run keeps no copies.
  std::string run_id() const;
  // The same; a run that has none gets one. For rank 0.
  std::string make_run_id() const;
  // Makes the folder ready for the copies of the run with this id; those of another run go. Throws Error that
  // names what cannot be written.
  void begin(const std::string& run_id) const;
  // Writes the id again if somebody has emptied the folder, as systemd-logind does with RemoveIPC=yes when a
  // user's last session ends: without it a start would not take the copies. Throws as begin() does.
  void keep_id(const std::string& run_id) const;
  // The run has ended, or begins anew: its copies go, and so do those of another run in its folder.
  void remove() const;

  // Bytes of copies that are there already, of this run or another one: new ones take their place.
  int64_t held() const;
  // Bytes that are free there; nothing if the system does not tell.
  std::optional<int64_t> free() const;

 private:
  void remove_folder() const;

  std::filesystem::path run_dir_, memory_, path_;
};

}  // namespace pptrain::app
