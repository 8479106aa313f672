#include "app/convert/hf_companions.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "app/convert/target_folder.h"
#include "app/data/text_codec.h"
#include "core/base/error.h"
#include "core/io/atomic_file.h"
#include "core/io/files.h"
#include "core/io/paths.h"
#include "core/tokenizer/tokenizer.h"

namespace pptrain::app {

namespace fs = std::filesystem;

namespace {
const std::string& definition = tokenizer_files().front();  // tokenizer.json
}

void copy_tokenizer(const fs::path& tokenizer, const fs::path& folder, const std::string& option) {
  const bool is_folder = fs::is_directory(tokenizer);
  const fs::path file = is_folder ? tokenizer / definition : tokenizer;
  if (!io::is_there(file)) throw UsageError(fmt::format("{}: there is no {}", option, file.string()));
  io::copy_file(file, folder / definition);
  for (const std::string& name : tokenizer_files()) {
    const fs::path neighbour = file.parent_path() / name;
    if (name != definition && io::is_there(neighbour)) io::copy_file(neighbour, folder / name);
  }
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
  return {.bos = tokenizer->bos_id(), .eos = tokenizer->eos_id()};
}

void write_generation_config(const models::TextEnds& ends, const fs::path& folder) {
  const fs::path path = folder / "generation_config.json";
  if (io::is_there(path)) return;
  nlohmann::ordered_json json = {{"_from_model_config", true}};
  if (ends.bos) json["bos_token_id"] = *ends.bos;
  if (ends.eos) json["eos_token_id"] = *ends.eos;
  io::write_file_atomically(path, json.dump(2) + "\n");
}

namespace {

namespace fs = std::filesystem;

// Whether a link leads to where a Hugging Face directory's own files may lie: the directory itself, or the
// blobs beside the snapshots of the Hub's cache (.../snapshots/REVISION/file -> ../../blobs/HASH).
bool leads_to_own_file(const fs::path& link, const fs::path& hf_dir) {
  if (io::lies_in(link, hf_dir)) return true;
  std::error_code error;
  const fs::path snapshots = fs::canonical(hf_dir, error).parent_path();
  const fs::path blobs = snapshots.parent_path() / "blobs";
  return !error && snapshots.filename() == "snapshots" && !fs::is_symlink(fs::symlink_status(blobs, error)) &&
         io::lies_in(link, blobs);
}

// Why an entry is not carried; nothing where it is.
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
