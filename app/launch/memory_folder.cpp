#include "app/launch/memory_folder.h"

#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdint>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/io/atomic_file.h"
#include "core/io/checksum.h"
#include "core/io/files.h"
#include "core/io/paths.h"

namespace pptrain::app {

namespace fs = std::filesystem;

namespace {

constexpr const char* id_name = "memory_copies";  // in run.dir, and in the folder of copies
constexpr size_t longest_id = 128;

std::string read_id(const fs::path& folder) {
  try {
    return io::is_there(folder / id_name) ? io::read_small_file(folder / id_name, longest_id) : "";
  } catch (const Error&) {
    return "";
  }
}

std::string real_name(const fs::path& folder) {
  std::error_code error;
  fs::path whole = fs::absolute(folder).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();  // "runs/first/", which may not be there yet
  const fs::path real = fs::weakly_canonical(whole, error);
  return (error ? whole : real).string();
}

}  // namespace

MemoryFolder::MemoryFolder(fs::path run_dir, fs::path memory)
    : run_dir_(std::move(run_dir)), memory_(std::move(memory)) {
  const std::string name = real_name(run_dir_);
  path_ = memory_ / fmt::format("pptrain-{}", ::getuid()) / io::checksum_hex(std::as_bytes(std::span(name)));
}

std::string MemoryFolder::place() const {
  struct stat entry {};
  if (::stat(memory_.c_str(), &entry) != 0) return host_name();
  const std::string boot = boot_id();  // hosts may share a name
  return fmt::format("{} {} {}", boot.empty() ? host_name() : boot, entry.st_dev, entry.st_ino);
}

bool MemoryFolder::holds_copies() const {
  const std::string id = read_id(path_);
  return !id.empty() && id == run_id();
}

std::string MemoryFolder::run_id() const {
  return read_id(run_dir_);
}

std::string MemoryFolder::make_run_id() const {
  std::string id = run_id();
  if (!id.empty()) return id;
  id = fmt::format("{} {} {}\n", host_name(), io::unique_suffix(), now_utc());
  io::write_file_atomically(run_dir_ / id_name, id);
  return id;
}

void MemoryFolder::begin(const std::string& run_id) const {
  if (read_id(path_) == run_id) return;
  remove_folder();
  keep_id(run_id);
}

void MemoryFolder::keep_id(const std::string& run_id) const {
  if (io::is_there(path_ / id_name)) return;
  std::error_code error;
  fs::create_directories(path_, error);
  if (!error) fs::permissions(path_.parent_path(), fs::perms::owner_all, error);
  if (error)
    throw Error(
        fmt::format("checkpoint.memory_seconds: cannot create {}: {}", path_.string(), error.message()));
  io::write_file_atomically(path_ / id_name, run_id);
}

void MemoryFolder::remove() const {
  remove_folder();
  std::error_code ignored;
  fs::remove(run_dir_ / id_name, ignored);
}

// By another name, since a writer that is not done yet would keep the folder from being removed.
void MemoryFolder::remove_folder() const {
  std::error_code ignored;
  fs::rename(path_, path_.string() + "." + io::unique_suffix(), ignored);
  std::vector<fs::path> going;  // and what was left when an earlier end was killed
  for (fs::directory_iterator entry(path_.parent_path(), ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    if (entry->path().filename().string().starts_with(path_.filename().string()))
      going.push_back(entry->path());
  }
  for (const fs::path& folder : going) fs::remove_all(folder, ignored);
  fs::remove(path_.parent_path(), ignored);  // if no other run is there
}

int64_t MemoryFolder::held() const {
  int64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(path_, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;
    const uintmax_t size = entry->is_regular_file(gone) ? entry->file_size(gone) : 0;
    if (!gone) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

std::optional<int64_t> MemoryFolder::free() const {
  struct statvfs system {};
  if (::statvfs(memory_.c_str(), &system) != 0) return std::nullopt;
  return static_cast<int64_t>(system.f_bavail) * static_cast<int64_t>(system.f_frsize);
}

}  // namespace pptrain::app
