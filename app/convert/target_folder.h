// A folder that appears whole or not at all, in the place of nothing or of an earlier conversion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace pptrain::app {

// Without links, "." and "..", as far as it is there.
std::filesystem::path real_path(const std::filesystem::path& path);

class TargetFolder {
 public:
  // `own`: files, relative, that the new folder may have beside those that are known of every conversion.
  // Throws UsageError where `target` is no folder, or one that is not empty and that `overwrite`
  // (--overwrite) does not cover: with a file in it that no conversion has written, or with a run's
  // checkpoint.
  TargetFolder(const std::filesystem::path& target, bool overwrite, std::set<std::string> own);
  // Removes what was written, unless it was published.
  ~TargetFolder();
  TargetFolder(const TargetFolder&) = delete;
  TargetFolder& operator=(const TargetFolder&) = delete;

  // Beside the target; what is to be published is written here, each file synced by its writer.
  const std::filesystem::path& folder() const { return temporary_; }
  // Syncs the folders and puts them at the target's place in one step; what was there is removed. Throws
  // Error, or UsageError where the target has come to hold something meanwhile.
  void publish();

 private:
  void check() const;

  std::filesystem::path target_, temporary_;
  bool overwrite_;
  std::set<std::string> own_;
};

// The files that a tokenizer of Hugging Face may have, tokenizer.json first; generation_config.json among
// them, which may say where texts end.
const std::vector<std::string>& tokenizer_files();

// --- How the weights of a Hugging Face directory are divided into files.

// transformers' max_shard_size.
inline constexpr uint64_t default_shard_bytes = 50'000'000'000;

// The numbers of the tensors in each file, in order: a file takes what comes until the next one would make it
// larger than `max_bytes`, as transformers does it; a tensor above that has a file of its own. One file at
// least.
std::vector<std::vector<size_t>> plan_shards(std::span<const uint64_t> tensor_bytes, uint64_t max_bytes);

// "model.safetensors", or of several "model-00001-of-00003.safetensors"; `shard` counts from 0.
std::string shard_name(size_t shard, size_t shards);
// Whether a file is named so.
bool is_shard_name(const std::string& name);

// model.safetensors.index.json: which file a tensor lies in, and the bytes of all tensors.
std::string index_text(const std::map<std::string, std::string>& file_of, uint64_t total_bytes);

}  // namespace pptrain::app
