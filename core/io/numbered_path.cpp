#include "core/io/numbered_path.h"

#include <spdlog/fmt/fmt.h>

#include <string>
#include <system_error>

#include "core/base/error.h"
#include "core/io/atomic_file.h"

namespace pptrain::io {

namespace fs = std::filesystem;

fs::path first_free(const fs::path& path) {
  std::error_code error;
  const std::string extension = path.extension().string();
  for (int i = 1;; ++i) {
    const fs::path candidate =
        path.parent_path() / fmt::format("{}.{}{}", path.stem().string(), i, extension);
    if (!fs::exists(fs::symlink_status(candidate, error))) return candidate;
  }
}

fs::path set_aside(const fs::path& path) {
  const fs::path aside = first_free(path);
  std::error_code error;
  fs::rename(path, aside, error);
  if (error) {
    throw Error(fmt::format("cannot move '{}' to '{}': {}", path.string(), aside.string(), error.message()));
  }
  sync_folder(path.has_parent_path() ? path.parent_path() : fs::path("."));
  return aside;
}

}  // namespace pptrain::io
