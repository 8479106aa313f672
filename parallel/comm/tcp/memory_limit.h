// How much memory this process may use.
#pragma once

#include <cstddef>
#include <filesystem>

namespace pptrain::comm {

// Bytes: those of the host, or of the least of this process's control groups (containers, Slurm, systemd)
// where that is less. The folders are where Linux has them; tests have others.
size_t memory_limit(const std::filesystem::path& own_groups = "/proc/self/cgroup",
                    const std::filesystem::path& groups = "/sys/fs/cgroup");

}  // namespace pptrain::comm
