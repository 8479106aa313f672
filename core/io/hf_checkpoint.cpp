#include "core/io/hf_checkpoint.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>

#include "core/base/error.h"
#include "core/io/checksum.h"
#include "core/io/mapped_file.h"
#include "core/io/paths.h"
#include "core/io/strict_json.h"

namespace pptrain::io {
namespace fs = std::filesystem;

HfCheckpoint::HfCheckpoint(const fs::path& folder) : folder_(folder) {
  const fs::path single = folder / "model.safetensors";
  const fs::path index = folder / "model.safetensors.index.json";
  if (fs::exists(single)) {
    const auto& reader = shards_.emplace(single.filename(), SafetensorsReader(single)).first->second;
    for (const TensorSpec& spec : reader.tensors()) shard_of_.emplace(spec.name, &reader);
  } else if (fs::exists(index)) {
    open_index(index);
  } else {
    throw Error(
        fmt::format("'{}' has neither model.safetensors nor model.safetensors.index.json", folder.string()));
  }
}

namespace {

using FileOfTensor = std::map<std::string, std::string>;

FileOfTensor read_index(const fs::path& index, const std::string& what) {
  const MappedFile file(index);
  const nlohmann::json document = parse_strict_json(file.text(), what);
  if (!document.is_object() || !document.contains("weight_map") || !document["weight_map"].is_object())
    throw Error(what + ": no object 'weight_map' of tensor names and files");
  FileOfTensor files;
  for (const auto& [name, value] : document["weight_map"].items()) {
    if (!value.is_string())
      throw Error(fmt::format("{}: the file of tensor '{}' is not a string", what, name));
    const auto& shard = files.emplace(name, value.get<std::string>()).first->second;
    if (!is_inner_path(shard))
      throw Error(fmt::format("{}: the file '{}' of tensor '{}' leads out of the folder", what, shard, name));
  }
  return files;
}

}  // namespace

void HfCheckpoint::open_index(const fs::path& index) {
  const std::string what = fmt::format("'{}'", index.string());
  const FileOfTensor file_of = read_index(index, what);
  std::set<std::string> files, missing;
  for (const auto& [name, shard] : file_of) {
    files.insert(shard);
    if (!fs::exists(folder_ / shard)) missing.insert(shard);
  }
  if (!missing.empty()) {
    throw Error(fmt::format("{}: {} of {} shards are missing: {}; is the download complete?", what,
                            missing.size(), files.size(), fmt::join(missing, ", ")));
  }
  for (const std::string& shard : files) shards_.emplace(shard, SafetensorsReader(folder_ / shard));
  for (const auto& [name, shard] : file_of) {
    const SafetensorsReader& reader = shards_.at(shard);
    if (!reader.contains(name))
      throw Error(fmt::format("{}: the tensor '{}' is not in its shard '{}'", what, name, shard));
    shard_of_.emplace(name, &reader);
  }
  add_unlisted();
}

// As in transformers, a tensor counts that the index does not name.
void HfCheckpoint::add_unlisted() {
  for (const auto& [shard, reader] : shards_) {
    for (const TensorSpec& spec : reader.tensors()) {
      const SafetensorsReader* const other = shard_of_.emplace(spec.name, &reader).first->second;
      if (other != &reader)
        throw Error(fmt::format("the tensor '{}' is in '{}' and in '{}'", spec.name, reader.path().string(),
                                other->path().string()));
    }
  }
}

const SafetensorsReader& HfCheckpoint::shard(const std::string& name) const {
  const auto found = shard_of_.find(name);
  if (found == shard_of_.end()) {
    throw Error(fmt::format("the Hugging Face directory '{}' has no tensor '{}'", folder_.string(), name));
  }
  return *found->second;
}

std::vector<std::string> HfCheckpoint::names() const {
  std::vector<std::string> result;
  for (const auto& [name, reader] : shard_of_) result.push_back(name);
  std::ranges::sort(result);
  return result;
}

std::string fingerprint(const HfCheckpoint& checkpoint) {
  constexpr size_t ends = 4096;
  Checksum sum;
  const auto add = [&](std::string_view text) { sum.add(std::as_bytes(std::span(text))); };
  for (const std::string& name : checkpoint.names()) {
    const TensorSpec& spec = checkpoint.spec(name);
    add(fmt::format("{} {} [{}]\n", name, dtype_name(spec.dtype), fmt::join(spec.shape, ", ")));
    const std::span<const std::byte> bytes = checkpoint.shard(name).bytes(name);
    sum.add(bytes.first(std::min(ends, bytes.size())));
    sum.add(bytes.last(std::min(ends, bytes.size())));
  }
  return sum.hex();
}

}  // namespace pptrain::io
