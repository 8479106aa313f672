#include "core/io/paths.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <string>

#include "core/base/error.h"
#include "core/io/atomic_file.h"

namespace pptrain::io {

namespace fs = std::filesystem;

bool is_inner_path(std::string_view path) {
  if (path.find('\0') != std::string_view::npos) return false;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

bool lies_in(const fs::path& path, const fs::path& folder) {
  std::error_code error;
  const fs::path real_folder = fs::canonical(folder, error);
  if (error) return false;
  const fs::path real = fs::weakly_canonical(path, error);
  if (error) return false;
  const auto [end, ignored] = std::ranges::mismatch(real_folder, real);
  return end == real_folder.end();
}

fs::path inner_path(const fs::path& folder, std::string_view path) {
  if (!is_inner_path(path))
    throw Error(fmt::format("'{}' is not the path of a file inside '{}'", path, folder.string()));
  fs::path whole = folder / path;
  if (!lies_in(whole, folder))
    throw Error(fmt::format("'{}' is a link that leads out of '{}'", path, folder.string()));
  return whole;
}

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
  sync_folder(path.parent_path());
  return aside;
}

}  // namespace pptrain::io
