// A folder that appears whole or not at all, in place of nothing or of an earlier conversion.
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

// Resolves links, "." and "..", as far as the path exists.
std::filesystem::path real_path(const std::filesystem::path& path);

class TargetFolder {
 public:
  // `own`: files, relative, that the new folder may have in addition to those known for every conversion.
  // Throws UsageError if `target` is no folder. Also throws it if the folder is not empty and `overwrite`
  // (--overwrite) does not cover it: it has a file that no conversion has written, or a run's checkpoint.
  TargetFolder(const std::filesystem::path& target, bool overwrite, std::set<std::string> own);
  // Removes what was written, unless it was published.
  ~TargetFolder();
  TargetFolder(const TargetFolder&) = delete;
  TargetFolder& operator=(const TargetFolder&) = delete;

  // Next to the target: files to be published are written here, each synced by its writer.
  const std::filesystem::path& folder() const { return temporary_; }
  // Syncs the folders and moves them to the target's place in one step; removes what was there. Throws Error,
  // or UsageError if the target has been filled meanwhile.
  void publish();

 private:
  void check() const;

  std::filesystem::path target_, temporary_;
  bool overwrite_;
  std::set<std::string> own_;
};

// The files that a Hugging Face tokenizer may have, tokenizer.json first; includes generation_config.json,
// which may give the ends of texts.
const std::vector<std::string>& tokenizer_files();

// --- Division of a Hugging Face directory's weights into files.

// transformers' max_shard_size.
inline constexpr uint64_t default_shard_bytes = 50'000'000'000;

// The numbers of the tensors in each file, in order. A file takes tensors until the next one would make it
// larger than `max_bytes`, as in transformers; a larger tensor has a file of its own. At least one file.
std::vector<std::vector<size_t>> plan_shards(std::span<const uint64_t> tensor_bytes, uint64_t max_bytes);

// "model.safetensors", or with several files "model-00001-of-00003.safetensors"; `shard` counts from 0.
std::string shard_name(size_t shard, size_t shards);
// Does a file have such a name?
bool is_shard_name(const std::string& name);

// model.safetensors.index.json: the file of each tensor, and the bytes of all tensors.
std::string index_text(const std::map<std::string, std::string>& file_of, uint64_t total_bytes);

}  // namespace pptrain::app
