// Memory of this host that this process may use, as Linux tells it: the host's and that of the process's
// control groups (containers, Slurm, systemd), whichever is less. Bytes. Tests pass files and folders of
// their own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace pptrain {

struct MemoryFiles {
  std::filesystem::path host = "/proc/meminfo";
  std::filesystem::path own_groups = "/proc/self/cgroup";
  std::filesystem::path groups = "/sys/fs/cgroup";
};

// What the process may use if it had the host for itself.
int64_t memory_limit(const MemoryFiles& files = {});

// What can be allocated now without swapping; files in the page cache make room. Nothing where the system
// does not tell.
std::optional<int64_t> available_memory(const MemoryFiles& files = {});

}  // namespace pptrain
