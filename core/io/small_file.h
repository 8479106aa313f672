// Files of a few lines, read whole.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace pptrain::io {

// The content of a regular file of `longest` bytes at most. Throws Error with the path where it is none,
// cannot be read or is longer.
std::string read_small_file(const std::filesystem::path& path, size_t longest);

}  // namespace pptrain::io
