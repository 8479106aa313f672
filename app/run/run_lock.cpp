#include "app/run/run_lock.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/base/text.h"
#include "core/io/atomic_file.h"
#include "core/io/files.h"
#include "core/io/paths.h"

namespace pptrain::app {

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

constexpr const char* end_name = "end.json";
constexpr const char* last_words_name = "last_words.txt";
constexpr size_t longest_end = 1 << 16;  // bytes

constexpr auto phase_words = std::to_array<std::string_view>(
    {"starting", "running", "finished", "stopped", "diverged", "failed", "dead", "unknown"});

// A word that names no end counts as a failure.
RunPhase end_of(const std::string& word) {
  for (const RunPhase end : {RunPhase::finished, RunPhase::stopped, RunPhase::diverged}) {
    if (word == phase_words.at(static_cast<size_t>(end))) return end;
  }
  return RunPhase::failed;
}

std::optional<LockHolder> read_holder(int fd) {
  std::array<char, 8192> text{};
  const ssize_t length = ::pread(fd, text.data(), text.size(), 0);
  if (length <= 0) return std::nullopt;
  const Json json = Json::parse(text.data(), text.data() + length, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  try {
    return LockHolder{.pid = json.at("pid"),
                      .host = json.at("host"),
                      .since = json.at("since"),
                      .command = json.at("command"),
                      .elastic = json.value("elastic", "")};
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

// Only for people to read: a failure to write is ignored.
void write_holder(int fd, const LockHolder& holder) {
  Json json{{"pid", holder.pid}, {"host", holder.host}, {"since", holder.since}, {"command", holder.command}};
  if (!holder.elastic.empty()) json["elastic"] = holder.elastic;
  const std::string text = one_line(json) + "\n";
  if (::ftruncate(fd, 0) == 0) std::ignore = ::pwrite(fd, text.data(), text.size(), 0);
}

std::string elastic_run() {
  const char* const run = std::getenv("PPTRAIN_ELASTIC_RUN");  // of scripts/elastic.sh
  return run == nullptr ? "" : run;
}

// Does the holder belong to this process's run of elastic.sh, on another host?
bool is_left_behind(const std::optional<LockHolder>& holder) {
  return holder && !holder->elastic.empty() && holder->elastic == elastic_run() &&
         holder->host != host_name();
}

// A write lock on all of a file, however long. Uses the first command, or the second if the kernel has no
// open file description locks for this file system.
bool lock_call(int fd, int command, int posix_command, struct flock& lock) {
  lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;  // from 0, of length 0
  return ::fcntl(fd, command, &lock) == 0 || (errno == EINVAL && ::fcntl(fd, posix_command, &lock) == 0);
}

}  // namespace

int lock_whole_file(int fd) {
  struct flock lock {};
  if (lock_call(fd, F_OFD_SETLK, F_SETLK, lock)) return 0;
  return errno == EACCES ? EAGAIN : errno;
}

LockState look_at_lock(const fs::path& folder) {
  const fs::path path = folder / "lock";
  if (!io::is_there(path)) return {};
  const io::RegularFile file(path);
  struct flock lock {};
  const bool seen = lock_call(file.descriptor(), F_OFD_GETLK, F_GETLK, lock);
  return {.held = seen ? std::optional(lock.l_type != F_UNLCK) : std::nullopt,
          .holder = read_holder(file.descriptor())};
}

std::string LockHolder::describe() const {
  return fmt::format("process {} on {}, since {} ({})", pid, host, since, command);
}

RunLock::~RunLock() {
  if (file_.open()) std::ignore = ::ftruncate(file_.get(), 0);
}

bool RunLock::try_take(const fs::path& folder, const std::function<void(const std::string&)>& warn,
                       const std::function<int(int)>& lock_file) {
  const fs::path path = folder / "lock";
  FileDescriptor file = io::open_own_file(path, O_RDWR | O_CREAT);
  const int error = lock_file(file.get());
  if (error == EAGAIN) {
    holder_ = read_holder(file.get());
    if (!is_left_behind(holder_)) return false;
    std::error_code failed;
    fs::remove(path, failed);
    return !failed && try_take(folder, warn, lock_file);
  }
  struct stat taken {};
  if (::fstat(file.get(), &taken) == 0) {
    device_ = taken.st_dev;
    inode_ = taken.st_ino;
  }
  if (error != 0) {
    warn(
        fmt::format("{}: this file system cannot lock ({}): nothing keeps a second run out of {}. Start one "
                    "at a time there.",
                    path.string(), std::system_category().message(error), folder.string()));
    return true;
  }
  own_ = LockHolder{.pid = ::getpid(),
                    .host = host_name(),
                    .since = now_utc(),
                    .command = command_line().substr(0, 4096),
                    .elastic = elastic_run()};
  write_holder(file.get(), *own_);
  file_ = std::move(file);
  return true;
}

// Some user-space file systems change a file's numbers now and then: then its text decides.
bool RunLock::is_in(const fs::path& folder) const {
  if (inode_ == 0) return true;
  const fs::path path = folder / "lock";
  struct stat now {};
  if (::stat(path.c_str(), &now) != 0) return errno != ENOENT && errno != ENOTDIR;
  if (now.st_dev == device_ && now.st_ino == inode_) return true;
  if (!own_) return true;
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.open()) return errno != ENOENT && errno != ENOTDIR;
  const std::optional<LockHolder> holder = read_holder(file.get());
  return holder && holder->same_process(*own_);
}

std::chrono::seconds patience(const std::optional<LockHolder>& holder) {
  using std::chrono::seconds;
  return holder && holder->host != host_name() ? seconds(100) : seconds(2);
}

std::string taken_message(const fs::path& folder, const std::optional<LockHolder>& holder) {
  const std::string who = holder ? holder->describe() : "another process, which does not say who it is";
  return fmt::format(
      "run.dir: {} is in use by {}. A folder has one run at a time: wait for that one, stop it{}, or give "
      "another run.dir.",
      folder.string(), who,
      holder ? fmt::format(" (kill -TERM {}{})", holder->pid,
                           holder->host == host_name() ? "" : fmt::format(" on {}", holder->host))
             : "");
}

std::string word_of(RunPhase phase) {
  return std::string(phase_words.at(static_cast<size_t>(phase)));
}

void write_run_end(const fs::path& folder, const RunEnd& end) {
  const Json json{{"how", word_of(end.how)},      {"step", end.step},
                  {"checkpoint", end.checkpoint}, {"message", end.message.substr(0, 4096)},
                  {"pid", end.process.pid},       {"host", end.process.host},
                  {"since", end.process.since},   {"time", now_utc()}};
  io::write_file_atomically(folder / end_name, one_line(json) + "\n");
  std::error_code ignored;
  if (end.how != RunPhase::failed) fs::remove(folder / last_words_name, ignored);
}

std::optional<RunEnd> read_run_end(const fs::path& folder) {
  try {
    const Json json = Json::parse(io::read_small_file(folder / end_name, longest_end));
    return RunEnd{
        .how = end_of(json.at("how").get_ref<const std::string&>()),
        .step = json.at("step"),
        .checkpoint = json.at("checkpoint"),
        .message = json.at("message"),
        .process = {
            .pid = json.at("pid"), .host = json.at("host"), .since = json.at("since"), .command = {}}};
  } catch (const std::exception&) {  // Error or Json::exception
    return std::nullopt;
  }
}

void note_last_words(const fs::path& folder, const std::string& text) noexcept {
  try {
    io::write_file_atomically(folder / last_words_name, text.substr(0, longest_end) + "\n");
  } catch (const std::exception& error) {
    spdlog::warn("{}", error.what());
  }
}

std::string read_last_words(const fs::path& folder) {
  try {
    std::string text = io::read_small_file(folder / last_words_name, longest_end + 1);
    while (text.ends_with('\n')) text.pop_back();
    return text;
  } catch (const Error&) {
    return "";
  }
}

void forget_run_end(const fs::path& folder) {
  std::error_code ignored;
  fs::remove(folder / end_name, ignored);
  fs::remove(folder / last_words_name, ignored);
}

}  // namespace pptrain::app
