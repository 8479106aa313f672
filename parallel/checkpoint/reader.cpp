#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/base/error.h"
#include "core/io/checksum.h"
#include "core/io/file_descriptor.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/open_checkpoint.h"

namespace pptrain::checkpoint {
namespace {

std::string describe(const std::string& dtype, const std::vector<int64_t>& shape) {
  return fmt::format("{} [{}]", dtype, fmt::join(shape, ", "));
}

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
    const std::string wanted = describe(expected.dtype, expected.shape);
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

struct Reader::Impl {
  struct Location {
    const io::SafetensorsReader* file = nullptr;
    const TensorEntry* entry = nullptr;
  };

  std::filesystem::path step_dir;
  Manifest manifest;
  std::vector<io::SafetensorsReader> files;
  std::map<std::pair<std::string, std::string>, Location> tensors;  // by file kind and name

  explicit Impl(const std::filesystem::path& dir) : step_dir(dir), manifest(read_manifest(dir)) {
    files.reserve(manifest.files.size());  // Location points into it
    for (const FileEntry& entry : manifest.files) {
      const io::SafetensorsReader& file = files.emplace_back(open_file(dir, entry));
      const auto problems = compare(file, entry);
      if (!problems.empty()) throw Error(problems.front());
      for (const auto& [name, tensor] : entry.tensors) tensors[{entry.file, name}] = {&file, &tensor};
    }
  }
};

Reader::Reader(const std::filesystem::path& step_dir) : impl_(std::make_unique<Impl>(step_dir)) {}
Reader::~Reader() = default;
Reader::Reader(Reader&&) noexcept = default;

const RunState& Reader::state() const {
  return impl_->manifest.state;
}
const Layout& Reader::layout() const {
  return impl_->manifest.layout;
}

bool Reader::contains(const std::string& file, const std::string& tensor) const {
  return impl_->tensors.contains({file, tensor});
}

std::vector<std::string> Reader::names(const std::string& file) const {
  std::vector<std::string> result;
  for (const auto& [key, location] : impl_->tensors) {
    if (key.first == file) result.push_back(key.second);
  }
  return result;
}

void Reader::read(const std::string& file, const std::string& tensor, at::Tensor out) const {
  const auto found = impl_->tensors.find({file, tensor});
  if (found == impl_->tensors.end()) {
    throw Error(fmt::format(
        "the checkpoint '{}' has no tensor '{}' in its {} files; was it saved by another model or "
        "optimizer?",
        impl_->step_dir.string(), tensor, file));
  }
  const auto& [reader, entry] = found->second;
  const std::string wanted = describe(io::dtype_name(out.scalar_type()), out.sizes().vec());
  if (describe(entry->dtype, entry->shape) != wanted) {
    throw Error(
        fmt::format("'{}': the tensor '{}' is {}, but the model's is {}; was it saved by another model?",
                    reader->path().string(), tensor, describe(entry->dtype, entry->shape), wanted));
  }
  check_bytes(*reader, tensor, *entry);
  out.copy_(reader->view(tensor));
}

}  // namespace pptrain::checkpoint
