#include "app/convert/hf_companions.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>

#include "app/convert/target_folder.h"
#include "app/data/text_codec.h"
#include "core/base/error.h"
#include "core/io/atomic_file.h"
#include "core/io/files.h"
#include "core/io/mapped_file.h"
#include "core/io/paths.h"
#include "core/text/tokenizer/tokenizer.h"

namespace pptrain::app {

namespace fs = std::filesystem;

namespace {

const std::string& definition = tokenizer_files().front();  // tokenizer.json

// Why a file that a checkpoint's job names is not published as its tokenizer; empty if it is.
std::string why_no_tokenizer(const fs::path& file) {
  if (!io::is_there(file)) return fmt::format("{} is not there", file.string());
  if (file.filename() == definition) return "";
  try {
    tokenizer::Tokenizer::load(file);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

bool has_tokenizer(const fs::path& folder) {
  return std::ranges::any_of(std::array{"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"},
                             [&](const char* name) { return io::is_there(folder / name); });
}

void copy_tokenizer_files(const fs::path& from, const fs::path& folder) {
  for (const std::string& name : tokenizer_files()) {
    if (io::is_there(from / name) && !io::is_there(folder / name)) io::copy_file(from / name, folder / name);
  }
}

void copy_tokenizer(const fs::path& tokenizer, const fs::path& folder, const std::string& option) {
  const fs::path file = fs::is_directory(tokenizer) ? tokenizer / definition : tokenizer;
  if (!io::is_there(file)) throw UsageError(fmt::format("{}: there is no {}", option, file.string()));
  io::copy_file(file, folder / definition);
  copy_tokenizer_files(file.parent_path(), folder);
}

void copy_tokenizer_of(const config::JobConfig& job, const fs::path& folder,
                       std::vector<std::string>& notes) {
  const fs::path named = tokenizer_of(job);
  if (named.empty()) {
    if (job.model.init == config::Init::hf) copy_tokenizer_files(job.model.hf_dir, folder);
    if (!has_tokenizer(folder))
      notes.push_back("no tokenizer written: the job names none; --tokenizer PATH adds one");
    return;
  }
  const fs::path file = fs::is_directory(named) ? named / definition : named;
  if (const std::string why = why_no_tokenizer(file); !why.empty()) {
    notes.push_back(fmt::format("no tokenizer written: {}; --tokenizer PATH adds one", why));
    return;
  }
  copy_tokenizer(file, folder, "data.tokenizer");
}

models::TextEnds read_text_ends(const fs::path& folder, const config::ModelSection& model,
                                std::vector<std::string>& notes) {
  if (!io::is_there(folder / definition)) return {};
  std::optional<tokenizer::Tokenizer> tokenizer;
  try {
    tokenizer = tokenizer::Tokenizer::load(folder);
  } catch (const Error& error) {
    notes.push_back(
        fmt::format("config.json does not say which tokens begin and end a text: {}", error.what()));
    return {};
  }
  require_rows(*tokenizer, model.vocab_size, "the tokenizer (--tokenizer names the right one)");
  return {.bos = tokenizer->bos_id(), .eos = tokenizer->stop_ids()};
}

namespace {

// json: null, an id, or a list of them.
bool same_ids(const nlohmann::ordered_json& json, const std::vector<int32_t>& ids) {
  std::set<int32_t> theirs;
  if (json.is_array()) theirs = json.get<std::set<int32_t>>();
  if (json.is_number()) theirs.insert(json.get<int32_t>());
  return theirs == std::set<int32_t>(ids.begin(), ids.end());
}

}  // namespace

void write_generation_config(const models::TextEnds& ends, const fs::path& folder) {
  const fs::path path = folder / "generation_config.json";
  nlohmann::ordered_json json = {{"_from_model_config", true}};
  if (!io::is_there(path)) {
    if (ends.bos) json["bos_token_id"] = *ends.bos;
  } else if (ends.eos.empty()) {
    return;
  } else {
    const io::MappedFile file(path);
    json = nlohmann::ordered_json::parse(file.text());  // read_text_ends has checked it
    if (same_ids(json.value("eos_token_id", nlohmann::ordered_json()), ends.eos)) return;
  }
  if (!ends.eos.empty()) json["eos_token_id"] = ends.eos_token_id();
  io::write_file_atomically(path, json.dump(2) + "\n");
}

namespace {

// Does a link lead to a place of the directory's own files: to the directory itself, or to the blobs next to
// the snapshots of the Hub's cache (.../snapshots/REVISION/file -> ../../blobs/HASH)?
bool leads_to_own_file(const fs::path& link, const fs::path& hf_dir) {
  if (io::lies_in(link, hf_dir)) return true;
  std::error_code error;
  const fs::path snapshots = fs::canonical(hf_dir, error).parent_path();
  const fs::path blobs = snapshots.parent_path() / "blobs";
  return !error && snapshots.filename() == "snapshots" && !fs::is_symlink(fs::symlink_status(blobs, error)) &&
         io::lies_in(link, blobs);
}

// Why an entry is not carried; nothing if it is.
std::optional<std::string> reason_to_leave(const fs::directory_entry& entry, const fs::path& hf_dir,
                                           uint64_t largest) {
  std::error_code error;
  if (entry.is_symlink() && !leads_to_own_file(entry.path(), hf_dir)) return "a link out of the directory";
  if (!entry.is_regular_file(error)) return error ? error.message() : "no file";
  const uintmax_t bytes = entry.file_size(error);
  if (error) return error.message();
  if (bytes <= largest) return std::nullopt;
  return fmt::format("{} MB, above {}, and no weights of the model", bytes >> 20, largest >> 20);
}

}  // namespace

std::vector<fs::path> list_other_files(const fs::path& hf_dir, const std::set<std::string>& shards,
                                       std::vector<std::string>& left_out, uint64_t largest) {
  std::vector<fs::path> carried;
  for (auto entry = fs::recursive_directory_iterator(hf_dir); entry != fs::end(entry); ++entry) {
    const fs::path relative = entry->path().lexically_relative(hf_dir);
    const bool hidden = relative.filename().string().starts_with('.');
    if (entry->is_directory()) {
      if (!hidden && !entry->is_symlink()) continue;
      entry.disable_recursion_pending();
      left_out.push_back(fmt::format("{}: a {} folder", relative.string(), hidden ? "hidden" : "linked"));
    } else if (!shards.contains(relative.string())) {
      if (const auto reason = reason_to_leave(*entry, hf_dir, largest)) {
        left_out.push_back(fmt::format("{}: {}", relative.string(), *reason));
      } else {
        carried.push_back(relative);
      }
    }
  }
  std::ranges::sort(carried);
  std::ranges::sort(left_out);
  return carried;
}

}  // namespace pptrain::app
