#include "core/io/input_file.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/base/error.h"

namespace pptrain::io {

InputFile::InputFile(std::filesystem::path path)
    : path_(std::move(path)), file_(open_file(path_, O_RDONLY)) {}

void InputFile::read_at(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(file_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw file_error("cannot read", path_, errno);
    if (got == 0) throw Error(fmt::format("'{}' ends at byte {}; it is cut off", path_.string(), offset));
    out = out.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
}

}  // namespace pptrain::io
