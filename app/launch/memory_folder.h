// Where a run keeps copies of its newest states in the host's memory (checkpoint.memory_seconds):
// checkpoints, in /dev/shm. A start of the same run finds them there; another run in the same run.dir does
// not, since both folders have the same id.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace pptrain::app {

// /dev/shm/pptrain-UID/HASH, by the real path of run.dir.
std::filesystem::path memory_folder(const std::filesystem::path& run_dir);

// memory_folder(run_dir), if it holds copies of the run in run_dir.
std::optional<std::filesystem::path> find_memory_copies(const std::filesystem::path& run_dir);

// Whether this checkpoint's folder is one of the copies.
bool is_memory_copy(const std::filesystem::path& run_dir, const std::filesystem::path& step_folder);

// Makes the folder ready for copies, and returns it. What is no copy of this run goes. Throws Error that
// names what cannot be written.
std::filesystem::path begin_memory_copies(const std::filesystem::path& run_dir);

// The run has ended, or begins anew: its copies go, and so do those of another run in its folder.
void remove_memory_copies(const std::filesystem::path& run_dir);

// Bytes of the run's copies that are there already: new ones take their place.
int64_t held_by_memory_copies(const std::filesystem::path& run_dir);

// Bytes that are free where memory folders are; nothing if the system does not tell.
std::optional<int64_t> free_memory_for_copies();

}  // namespace pptrain::app
