// Finds what lies at a path instead of a file: a pipe would be waited for, a device can act on being opened.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace pptrain {

// "a directory", "a pipe", "a socket" or "a device" if one of them is at `path`, links followed. "" for a
// regular file, and if nothing is there or can be seen.
inline std::string special_file(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  switch (fs::status(path, error).type()) {
    case fs::file_type::directory:
      return "a directory";
    case fs::file_type::fifo:
      return "a pipe";
    case fs::file_type::socket:
      return "a socket";
    case fs::file_type::block:
    case fs::file_type::character:
      return "a device";
    default:
      return "";
  }
}

}  // namespace pptrain
