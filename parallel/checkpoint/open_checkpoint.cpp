#include "parallel/checkpoint/open_checkpoint.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <memory>
#include <system_error>

#include "core/base/error.h"
#include "core/io/checksum.h"
#include "core/io/files.h"

namespace pptrain::checkpoint {
namespace {
// Pieces stay in a core's cache until they are summed and copied.
constexpr uint64_t piece_bytes = uint64_t{1} << 20;
}  // namespace

io::SafetensorsReader open_file(const std::filesystem::path& step_dir, const FileEntry& entry) {
  const std::filesystem::path path = step_dir / entry.path();
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) throw io::file_error("cannot open", path, error.value());
  if (size != entry.bytes) {
    throw Error(fmt::format("'{}' has {} bytes, but the manifest says {}; it is incomplete or damaged",
                            path.string(), size, entry.bytes));
  }
  return io::SafetensorsReader(path);
}

std::vector<std::string> compare(const io::SafetensorsReader& file, const FileEntry& entry) {
  std::vector<std::string> problems;
  const std::string path = file.path().string();
  for (const auto& [name, expected] : entry.tensors) {
    if (!file.contains(name)) {
      problems.push_back(fmt::format("'{}': the tensor '{}' is missing", path, name));
      continue;
    }
    const std::string found = describe(io::dtype_name(file.spec(name).dtype), file.spec(name).shape);
    const std::string wanted = describe(expected.dtype, expected.stored_shape());
    if (found != wanted) {
      problems.push_back(
          fmt::format("'{}': the tensor '{}' is {}, but the manifest says {}", path, name, found, wanted));
    }
  }
  for (const io::TensorSpec& spec : file.tensors()) {
    if (!entry.tensors.contains(spec.name)) {
      problems.push_back(fmt::format("'{}': the tensor '{}' is not in the manifest", path, spec.name));
    }
  }
  return problems;
}

std::string stream_bytes(const io::RegularFile& input, const io::SafetensorsReader& file,
                         const std::string& tensor, uint64_t begin, uint64_t end, const Take& take) {
  const uint64_t offset = file.offset(tensor);
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(std::min(end - begin, piece_bytes));
  io::Checksum checksum;
  for (uint64_t at = begin; at < end; at += piece_bytes) {
    const std::span piece(buffer.get(), std::min(piece_bytes, end - at));
    input.read(offset + at, piece);
    checksum.add(piece);
    take(at, piece);
  }
  return checksum.hex();
}

Unusable damaged(const io::SafetensorsReader& file, const std::string& tensor) {
  return Unusable(fmt::format("'{}': the tensor '{}' is damaged (its checksum is not the manifest's)",
                              file.path().string(), tensor));
}

}  // namespace pptrain::checkpoint
