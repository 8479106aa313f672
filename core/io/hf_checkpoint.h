// The weights of a Hugging Face directory: `model.safetensors`, or `model.safetensors.index.json` and its
// shards.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/io/safetensors.h"

namespace pptrain::io {

class HfCheckpoint {
 public:
  // Maps every file and checks the headers; reads no tensor. Throws Error: no weights in the folder, a
  // damaged index, an index that leads out of the folder, missing or damaged shards, a tensor that its shard
  // lacks, or that two shards have.
  explicit HfCheckpoint(const std::filesystem::path& folder);
  HfCheckpoint(HfCheckpoint&&) noexcept = default;
  HfCheckpoint& operator=(HfCheckpoint&&) noexcept = default;

  bool contains(const std::string& name) const { return shard_of_.contains(name); }
  // The tensor on the mapped file, read-only (SafetensorsReader::view). Throws Error that names tensor and
  // folder.
  at::Tensor tensor(const std::string& name) const { return shard(name).view(name); }
  // Without reading the tensor.
  const TensorSpec& spec(const std::string& name) const { return shard(name).spec(name); }
  // Sorted.
  std::vector<std::string> names() const;
  // The files by their names in the folder, and the one of a tensor.
  const std::map<std::string, SafetensorsReader>& shards() const { return shards_; }
  const SafetensorsReader& shard(const std::string& name) const;
  const std::filesystem::path& folder() const { return folder_; }

 private:
  void open_index(const std::filesystem::path& index);
  void add_unlisted();

  std::filesystem::path folder_;
  std::map<std::string, SafetensorsReader> shards_;  // by file name
  std::unordered_map<std::string, const SafetensorsReader*> shard_of_;
};

// Tells a directory's weights from another's, in moments: XXH3-128 of each tensor's name, type and shape and
// of the first and last 4 KiB of its bytes. Training changes these; how tensors are divided into files does
// not.
std::string fingerprint(const HfCheckpoint& checkpoint);

}  // namespace pptrain::io
