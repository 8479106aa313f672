#include "core/io/small_file.h"

#include <spdlog/fmt/fmt.h>

#include <span>

#include "core/base/error.h"
#include "core/io/regular_file.h"

namespace pptrain::io {

std::string read_small_file(const std::filesystem::path& path, size_t longest) {
  const RegularFile file(path);
  if (file.size() > longest) {
    throw Error(
        fmt::format("'{}' has {} bytes; {} at most were expected", path.string(), file.size(), longest));
  }
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace pptrain::io
