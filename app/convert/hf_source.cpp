#include "app/convert/hf_source.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <map>

#include "core/base/error.h"

namespace pptrain::app {

std::string HfStored::describe() const {
  return fmt::format("'{}': the tensor '{}'", file->path().string(), spec.name);
}

HfStored HfSource::find(const std::string& tensor) const {
  return {&hf_.shard(tensor), hf_.spec(tensor)};
}

void HfSource::read(const HfStored& tensor, uint64_t begin, std::span<std::byte> out) {
  if (!open_ || open_->path() != tensor.file->path()) open_.emplace(tensor.file->path());
  open_->read(tensor.file->offset(tensor.spec.name) + begin, out);
}

bool HfSource::same(const HfStored& a, const HfStored& b) {
  if (a.spec.dtype != b.spec.dtype || a.spec.shape != b.spec.shape) return false;
  constexpr uint64_t piece_bytes = uint64_t{1} << 20;
  std::vector<std::byte> first(piece_bytes), second(piece_bytes);
  const uint64_t size = a.file->bytes(a.spec.name).size();
  for (uint64_t at = 0; at < size; at += piece_bytes) {
    const uint64_t count = std::min(piece_bytes, size - at);
    const std::span<std::byte> ours = std::span(first).first(count), theirs = std::span(second).first(count);
    read(a, at, ours);
    read(b, at, theirs);
    if (!std::ranges::equal(ours, theirs)) return false;
  }
  return true;
}

std::vector<HfStored> HfSource::others(const std::set<std::string>& taken) const {
  std::vector<HfStored> found;
  std::map<std::string, const io::SafetensorsReader*> seen;
  for (const auto& [name, file] : hf_.shards()) {
    for (const io::TensorSpec& spec : file.tensors()) {
      const HfStored tensor{&file, spec};
      const auto [other, is_new] = seen.emplace(spec.name, &file);
      if (!is_new)
        throw Error(fmt::format("{} is in {} too", tensor.describe(), other->second->path().string()));
      if (!taken.contains(spec.name)) found.push_back(tensor);
    }
  }
  return found;
}

}  // namespace pptrain::app
