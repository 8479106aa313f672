#include "parallel/checkpoint/open_checkpoint.h"

#include <spdlog/fmt/fmt.h>

#include <cstdint>
#include <system_error>

#include "core/base/error.h"
#include "core/io/checksum.h"
#include "core/io/file_descriptor.h"

namespace pptrain::checkpoint {

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

void check_bytes(const io::SafetensorsReader& file, const std::string& tensor, const TensorEntry& entry) {
  if (io::checksum_hex(file.bytes(tensor)) != entry.checksum) {
    throw Error(fmt::format("'{}': the tensor '{}' is damaged (its checksum is not the manifest's)",
                            file.path().string(), tensor));
  }
}

}  // namespace pptrain::checkpoint
