// Whether there is something of a name, where a name that cannot be looked at counts as none.
#pragma once

#include <filesystem>
#include <system_error>

namespace pptrain::io {

// True where `path` (followed through links) names something; false too where a folder on the way may not be
// read or the device fails. Never throws: who then opens the file hears what is wrong with it.
inline bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace pptrain::io
