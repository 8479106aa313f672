// A folder that appears whole or not at all, in the place of nothing or of an earlier conversion.
#pragma once

#include <filesystem>
#include <set>
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

// Whether a file of this name (without a folder) may be one of a Hugging Face directory that was written
// here: weights, their index, config.json, or of a tokenizer.
bool is_hf_file(const std::string& name);

// The files that a tokenizer of Hugging Face may have, tokenizer.json first; generation_config.json among
// them, which may say where texts end.
const std::vector<std::string>& tokenizer_files();

}  // namespace pptrain::app
