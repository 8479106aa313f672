#include "core/corpus/cache.h"

#include <signal.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/data/fingerprint.h"
#include "core/io/atomic_file.h"
#include "core/io/checksum.h"
#include "core/io/is_there.h"
#include "core/io/mapped_file.h"
#include "core/io/process_space.h"
#include "core/tokenizer/tokenizer.h"

namespace pptrain::corpus {
namespace {

namespace fs = std::filesystem;

constexpr int version = 1;  // of the tokens that are made of one request

std::string hex_of(const std::string& text) {
  return io::checksum_hex(std::as_bytes(std::span(text)));
}

// tokenizer.json, and what is beside it that says where a text ends.
std::vector<fs::path> tokenizer_files(const fs::path& given) {
  const fs::path main = fs::is_directory(given) ? given / "tokenizer.json" : given;
  std::vector<fs::path> files = {main};
  for (const char* name : {"tokenizer_config.json", "generation_config.json"}) {
    if (const fs::path beside = main.parent_path() / name; io::is_there(beside)) files.push_back(beside);
  }
  return files;
}

// Of all their bytes: a tokenizer that differs in one merge is another one.
std::string checksum_of(const std::vector<fs::path>& files) {
  io::Checksum checksum;
  for (const fs::path& file : files) checksum.add(io::MappedFile(file).bytes());
  return checksum.hex();
}

// A folder in the making: gone with this object, unless it was renamed.
class Part {
 public:
  explicit Part(fs::path path) : path_(std::move(path)) { fs::create_directory(path_); }
  ~Part() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Of a cache `name`; the id of the process that makes it follows. Parts of other containers and hosts have another one.
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

std::string fingerprint(const CacheRequest& request) {
  const DocumentFormat& format = request.format;
  const nlohmann::ordered_json all = {
      {"version", version},
      {"files", data::fingerprint(request.files)},
      {"tokenizer", checksum_of(tokenizer_files(request.tokenizer))},
      {"kind", static_cast<int>(format.kind)},
      {"keys", format.kind == Kind::text ? std::vector<std::string>() : format.keys()},
      {"separator", hex_of(format.separator)},
      {"add_special", request.add_special},
      {"end_id", request.end_id.value_or(-1)}};
  return hex_of(all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::string cache_name(const CacheRequest& request) {
  std::string all = fingerprint(request);
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

fs::path make_cache(std::span<const fs::path> folders, const std::string& name, const CacheRequest& request,
                    int threads, const std::function<void(const TokenizeProgress&)>& report) {
  const fs::path folder = first_writable(folders), cache = folder / name;
  remove_dead_parts(folder, name);
  const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(request.tokenizer);
  const Part part(folder / fmt::format("{}{}", part_prefix(name), ::getpid()));
  const TokenizeOptions options{.format = request.format,
                                .encode = {.add_special = request.add_special,
                                           .end_id = request.end_id ? request.end_id : tokenizer.eos_id()},
                                .threads = threads};
  const int64_t ids = std::max<int64_t>(tokenizer.vocab_size(), options.encode.end_id.value_or(0) + 1);
  TokenWriter writer(part.path() / "tokens", ids <= 65536 ? 2 : 4, /*overwrite=*/false);
  const TokenizeProgress result = tokenize_files(tokenizer, request.files, options, writer, report);
  if (result.documents == 0)
    throw Error(fmt::format("'{}' has no document with a text", request.files.front().string()));
  nlohmann::ordered_json about = {{"version", version},
                                  {"documents", result.documents},
                                  {"tokens", result.tokens},
                                  {"prompt_tokens", result.prompt_tokens},
                                  {"documents_without_text", result.empty},
                                  {"tokenizer", request.tokenizer.string()},
                                  {"files", nlohmann::json::array()}};
  for (const fs::path& file : request.files) about["files"].push_back(file.string());
  io::write_file_atomically(part.path() / "about.json",
                            about.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  // One that another process has made meanwhile is as good; files that it has open stay where they are.
  if (!io::is_there(cache)) io::rename_folder_synced(part.path(), cache);
  return cache;
}

}  // namespace pptrain::corpus
