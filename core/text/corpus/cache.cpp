#include "core/text/corpus/cache.h"

#include <signal.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/data/inspect.h"
#include "core/io/atomic_file.h"
#include "core/io/checksum.h"
#include "core/io/mapped_file.h"
#include "core/io/paths.h"
#include "core/io/strict_json.h"
#include "core/text/tokenizer/tokenizer.h"

namespace pptrain::corpus {
namespace {

namespace fs = std::filesystem;

constexpr int version = 2;  // of the tokens that are made of one request

std::string hex_of(const std::string& text) {
  return io::checksum_hex(std::as_bytes(std::span(text)));
}

fs::path tokenizer_file(const fs::path& given) {
  return fs::is_directory(given) ? given / "tokenizer.json" : given;
}

// The value under a key of a file's object; null if there is none.
nlohmann::json value_in(const fs::path& file, const char* key) {
  if (!io::is_there(file)) return {};
  nlohmann::json all = io::parse_strict_json(io::MappedFile(file).text(), file.string());
  return all.is_object() && all.contains(key) ? std::move(all[key]) : nlohmann::json();
}

// What the files beside tokenizer.json say about the token that ends a text, as Tokenizer::eos_id takes it.
// Nothing else in them changes a token: no chat template, no temperature.
nlohmann::json end_beside(const fs::path& folder) {
  if (const auto token = tokenizer::named_token(folder, "eos_token")) return nlohmann::json(token->text);
  const nlohmann::json ids = value_in(folder / "generation_config.json", "eos_token_id");
  if (!ids.is_array()) return ids;
  return ids.size() == 1 ? ids[0] : nlohmann::json();
}

// A folder in the making: gone with this object, unless it was renamed.
class PartFolder {
 public:
  explicit PartFolder(fs::path path) : path_(std::move(path)) { fs::create_directory(path_); }
  ~PartFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  PartFolder(const PartFolder&) = delete;
  PartFolder& operator=(const PartFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Prefix for parts of the cache `name`; the id of the process that makes it follows. Parts of other
// containers and hosts have another prefix.
std::string part_prefix(const std::string& name) {
  return fmt::format("{}.part-{}-", name, io::process_space());
}

void remove_dead_parts(const fs::path& folder, const std::string& name) {
  const std::string prefix = part_prefix(name);
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string found = entry->path().filename().string();
    if (!found.starts_with(prefix)) continue;
    pid_t pid = 0;
    std::from_chars(found.data() + prefix.size(), found.data() + found.size(), pid);
    std::error_code ignored;
    if (pid == ::getpid() || (pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH))
      fs::remove_all(entry->path(), ignored);
  }
}

fs::path first_writable(std::span<const fs::path> folders) {
  std::string tried;
  for (const fs::path& folder : folders) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (::access(folder.c_str(), W_OK | X_OK) == 0) return folder;
    tried += fmt::format("{}'{}'", tried.empty() ? "" : " nor in ", folder.string());
  }
  throw Error(
      fmt::format("token files cannot be written in {}: give a folder, data.cache, that can be", tried));
}

}  // namespace

std::string fingerprint(const TokenizeRequest& request) {
  const DocumentFormat& format = request.format;
  const fs::path tokenizer = tokenizer_file(request.tokenizer);
  const nlohmann::json end = request.end_id        ? nlohmann::json(*request.end_id)
                             : format.has_tokens() ? nlohmann::json()
                                                   : end_beside(tokenizer.parent_path());
  nlohmann::ordered_json all = {
      {"version", version},
      {"files", data::fingerprint(request.files)},
      {"tokenizer",
       format.has_tokens() ? std::string() : io::checksum_hex(io::MappedFile(tokenizer).bytes())},
      {"kind", static_cast<int>(format.kind)},
      {"keys", format.kind == config::DataFormat::text ? std::vector<std::string>() : format.keys()},
      {"separator", hex_of(format.separator)},
      {"add_special", request.add_special},
      {"end", end.dump()}};
  // Only if they act, so that the names of other caches stay.
  if (format.has_messages()) all["chat"] = format.chat->texts();
  if (format.has_tokens()) all["tokens"] = true;
  if (request.max_tokens > 0) all["max_tokens"] = request.max_tokens;
  return hex_of(one_line(all));
}

std::string cache_name(const TokenizeRequest& request) {
  std::string all = fingerprint(request);
  if (request.format.skip_bad_lines) all += " skip";  // to others its lines are to be an error
  if (request.format.has_messages())
    all += " 2";  // targets of version 1 took no account of a message's weight
  for (const fs::path& file : request.files)
    all += fmt::format(" {}", fs::last_write_time(file).time_since_epoch().count());
  return "tokens-" + hex_of(all).substr(0, 20);
}

fs::path token_file(const fs::path& cache) {
  return cache / "tokens.bin";
}

fs::path find_cache(std::span<const fs::path> folders, const std::string& name) {
  for (const fs::path& folder : folders) {
    if (io::is_there(folder / name)) return folder / name;
  }
  return {};
}

fs::path make_cache(std::span<const fs::path> folders, const std::string& name, TokenizeRequest request,
                    const std::function<void(const TokenizeProgress&)>& report) {
  const fs::path folder = first_writable(folders), cache = folder / name;
  remove_dead_parts(folder, name);
  const auto tokenizer = request.format.has_tokens()
                             ? std::nullopt
                             : std::optional(tokenizer::Tokenizer::load(request.tokenizer));
  const PartFolder part(folder / fmt::format("{}{}", part_prefix(name), ::getpid()));
  if (tokenizer && !request.end_id) request.end_id = tokenizer->eos_id();
  const int64_t ids = std::max<int64_t>(tokenizer ? tokenizer->vocab_size() : request.format.vocab_size,
                                        request.end_id.value_or(0) + 1);
  TokenWriter writer(part.path() / "tokens", ids <= 65536 ? 2 : 4, /*overwrite=*/false);
  const TokenizeProgress result = tokenize_files(tokenizer ? &*tokenizer : nullptr, request, writer, report);
  nlohmann::ordered_json about = {{"version", version},
                                  {"documents", result.documents},
                                  {"tokens", result.tokens},
                                  {"prompt_tokens", result.prompt_tokens},
                                  {"truncated_documents", result.truncated},
                                  {"documents_without_targets", result.without_targets},
                                  {"documents_without_text", result.empty},
                                  {"bad_lines", result.bad},
                                  {"first_bad_line", result.first_bad},
                                  {"tokenizer", request.tokenizer.string()},
                                  {"files", nlohmann::json::array()}};
  for (const fs::path& file : request.files) about["files"].push_back(file.string());
  io::write_file_atomically(part.path() / "about.json",
                            about.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  // A cache that another process has made meanwhile is as good; files that it has open stay in place.
  if (!io::is_there(cache)) io::rename_folder_synced(part.path(), cache);
  return cache;
}

}  // namespace pptrain::corpus
