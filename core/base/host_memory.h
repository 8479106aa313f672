// Memory of this host that this process may use, as Linux tells it: the host's limit and that of the
// process's control groups (containers, Slurm, systemd), whichever is less. Bytes. `root`: where proc and sys
// lie; tests pass a folder of their own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace pptrain {

// What the process may use if it had the host for itself.
int64_t memory_limit(const std::filesystem::path& root = "/");

// Bytes that can be allocated now without swapping; files in the page cache make room. Nothing if the system
// does not tell.
std::optional<int64_t> available_memory(const std::filesystem::path& root = "/");

}  // namespace pptrain
