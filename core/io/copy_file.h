// Copies that are on the device when they are done.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>

namespace pptrain::io {

// Writes the first `bytes` bytes of `source` (all of it where it has fewer) to the new file `target` and
// syncs it, a piece at a time; folders above `target` are made. Links are followed. Throws Error that names
// the file and the system's reason.
void copy_file(const std::filesystem::path& source, const std::filesystem::path& target,
               uint64_t bytes = std::numeric_limits<uint64_t>::max());

// The checksum (checksum.h) of a whole file, read a piece at a time.
std::string file_checksum(const std::filesystem::path& path);

}  // namespace pptrain::io
