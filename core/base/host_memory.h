// Memory of this host: what this process may use of it, and what it does with blocks that it has freed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace pptrain {

// Files there are memory of this host, and outlive processes.
inline constexpr const char* memory_file_system = "/dev/shm";

// --- As Linux tells it: the host's limit and that of the process's control groups (containers, Slurm,
// systemd), whichever is less. Bytes. `root`: where proc and sys lie; tests pass a folder of their own.

// What the process may use if it had the host for itself.
int64_t memory_limit(const std::filesystem::path& root = "/");

// Bytes that can be allocated now without swapping; files in the page cache make room. Nothing if the system
// does not tell.
std::optional<int64_t> available_memory(const std::filesystem::path& root = "/");

// --- Freed blocks

// Freed blocks stay with the process. Otherwise glibc gives every block above 32 MiB back and takes it anew
// for each microbatch, and the system clears it page by page: 0.36 ms/MiB on a virtual machine, a tenth of
// the time of a layer of experts. Call it before the first large block.
//
// glibc unmaps an empty thread heap of 64 MiB (HEAP_MAX_SIZE) regardless of the trim threshold, unless the
// previous heap has less free space than M_TOP_PAD. Hence M_TOP_PAD is 64 MiB. It costs addresses, no memory.
void keep_freed_memory();

// The opposite, for a command that handles one tensor after the other: blocks from 64 KiB on go back to the
// system when freed. Else the heap, whose free blocks fit no other tensor well, may grow to all of the model.
void return_freed_memory();

}  // namespace pptrain
