#include "app/convert/target_folder.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/io/atomic_file.h"
#include "core/io/files.h"
#include "core/io/paths.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::app {

namespace {

namespace fs = std::filesystem;

// The names in a checkpoint's manifest. Throws UsageError if a run has saved the checkpoint.
std::set<std::string> files_of_checkpoint(const fs::path& folder) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(folder);
  if (!manifest.weights_alone()) {
    throw UsageError(
        fmt::format("--to: {} is a checkpoint that a run has saved, with optimizer state, which --overwrite "
                    "does not replace",
                    folder.string()));
  }
  std::set<std::string> names = {checkpoint::manifest_name};
  for (const checkpoint::FileEntry& file : manifest.files) names.insert(file.path().string());
  for (const checkpoint::Attachment& file : manifest.attachments) names.insert(file.path);
  return names;
}

// May a file of this name (without a folder) belong to a Hugging Face directory that was written here:
// weights, their index, config.json, adapters, or a tokenizer?
bool is_hf_file(const std::string& name) {
  return name == "config.json" || name == "model.safetensors.index.json" || is_shard_name(name) ||
         name == "adapter_config.json" || name == "adapter_model.safetensors" ||
         std::ranges::find(tokenizer_files(), name) != tokenizer_files().end();
}

// A file that no conversion has written.
std::optional<std::string> find_foreign(const fs::path& folder, const std::set<std::string>& own) {
  const bool is_checkpoint = io::is_there(folder / checkpoint::manifest_name);
  const std::set<std::string> known = is_checkpoint ? files_of_checkpoint(folder) : own;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).string();
    if (entry.is_directory() && !entry.is_symlink()) continue;
    if (!known.contains(name) && (is_checkpoint || !is_hf_file(name))) return name;
  }
  return std::nullopt;
}

}  // namespace

const std::vector<std::string>& tokenizer_files() {
  static const std::vector<std::string> names = {"tokenizer.json",
                                                 "tokenizer_config.json",
                                                 "special_tokens_map.json",
                                                 "added_tokens.json",
                                                 "vocab.json",
                                                 "merges.txt",
                                                 "vocab.txt",
                                                 "tokenizer.model",
                                                 "chat_template.jinja",
                                                 "chat_template.json",
                                                 "generation_config.json"};
  return names;
}

fs::path real_path(const fs::path& path) {
  const fs::path real = fs::weakly_canonical(fs::absolute(path));
  return real.has_filename() ? real : real.parent_path();  // "out/"
}

TargetFolder::TargetFolder(const fs::path& target, bool overwrite, std::set<std::string> own)
    : target_(real_path(target)), overwrite_(overwrite), own_(std::move(own)) {
  check();
  // Another prefix than a run's temporary files have, which the run's next start removes.
  temporary_ = target_.parent_path() /
               fmt::format(".converting_{}.{}", target_.filename().string(), io::unique_suffix());
  io::make_folder(temporary_);
}

TargetFolder::~TargetFolder() {
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

void TargetFolder::check() const {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(target_, error))) return;
  if (!fs::is_directory(target_, error))
    throw UsageError(fmt::format("--to: {} is there already, and no folder", target_.string()));
  if (fs::is_empty(target_)) return;
  if (!overwrite_) {
    throw UsageError(fmt::format(
        "--to: {} is there already: give another folder, or --overwrite to replace it", target_.string()));
  }
  if (const auto foreign = find_foreign(target_, own_)) {
    throw UsageError(
        fmt::format("--to: {} holds {}, which no conversion has written: --overwrite does not replace it. "
                    "Move it away, or give another folder",
                    target_.string(), *foreign));
  }
}

void TargetFolder::publish() {
  io::sync_folders(temporary_);
  check();
  io::rename_folder_synced(temporary_, target_);
}

std::vector<std::vector<size_t>> plan_shards(std::span<const uint64_t> tensor_bytes, uint64_t max_bytes) {
  std::vector<std::vector<size_t>> shards(1);
  uint64_t bytes = 0;
  for (size_t tensor = 0; tensor < tensor_bytes.size(); ++tensor) {
    if (!shards.back().empty() && tensor_bytes[tensor] > max_bytes - std::min(bytes, max_bytes)) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(tensor);
    bytes += tensor_bytes[tensor];
  }
  return shards;
}

std::string shard_name(size_t shard, size_t shards) {
  if (shards == 1) return "model.safetensors";
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
}

bool is_shard_name(const std::string& name) {
  constexpr std::string_view begin = "model", end = ".safetensors";
  if (!name.starts_with(begin) || !name.ends_with(end) || name.size() < begin.size() + end.size())
    return false;
  const std::string number = name.substr(begin.size(), name.size() - begin.size() - end.size());
  return number.empty() ||
         (number.starts_with("-") && number.find_first_not_of("-0123456789of") == std::string::npos);
}

std::string index_text(const std::map<std::string, std::string>& file_of, uint64_t total_bytes) {
  const nlohmann::json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", file_of}};
  return index.dump(2) + "\n";
}

}  // namespace pptrain::app
