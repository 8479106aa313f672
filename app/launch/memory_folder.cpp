#include "app/launch/memory_folder.h"

#include <spdlog/fmt/fmt.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdint>
#include <span>
#include <string>
#include <system_error>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/io/atomic_file.h"
#include "core/io/checksum.h"
#include "core/io/files.h"
#include "core/io/paths.h"

namespace pptrain::app {

namespace fs = std::filesystem;

namespace {

constexpr const char* memory = "/dev/shm";
constexpr const char* id_name = "memory_copies";  // in run.dir, and in the folder of copies
constexpr size_t longest_id = 128;

std::string read_copies_id(const fs::path& folder) {
  try {
    return io::is_there(folder / id_name) ? io::read_small_file(folder / id_name, longest_id) : "";
  } catch (const Error&) {
    return "";
  }
}

std::string new_copies_id() {
  return fmt::format("{} {} {}\n", host_name(), ::getpid(), now_utc());
}

}  // namespace

fs::path memory_folder(const fs::path& run_dir) {
  std::error_code error;
  const fs::path real = fs::weakly_canonical(run_dir, error);
  const std::string name = (error ? fs::absolute(run_dir) : real).string();
  return fs::path(memory) / fmt::format("pptrain-{}", ::getuid()) /
         io::checksum_hex(std::as_bytes(std::span(name)));
}

std::optional<fs::path> find_memory_copies(const fs::path& run_dir) {
  const fs::path folder = memory_folder(run_dir);
  const std::string id = read_copies_id(folder);
  if (id.empty() || id != read_copies_id(run_dir)) return std::nullopt;
  return folder;
}

bool is_memory_copy(const fs::path& run_dir, const fs::path& step_folder) {
  return step_folder.parent_path() == memory_folder(run_dir);
}

fs::path begin_memory_copies(const fs::path& run_dir) {
  if (const auto folder = find_memory_copies(run_dir)) return *folder;
  remove_memory_copies(run_dir);
  const fs::path folder = memory_folder(run_dir);
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) fs::permissions(folder.parent_path(), fs::perms::owner_all, error);
  if (error)
    throw Error(
        fmt::format("checkpoint.memory_seconds: cannot create {}: {}", folder.string(), error.message()));
  const std::string id = new_copies_id();
  io::write_file_atomically(run_dir / id_name, id);
  io::write_file_atomically(folder / id_name, id);
  return folder;
}

void remove_memory_copies(const fs::path& run_dir) {
  std::error_code ignored;
  // By another name, since a writer that is not done yet would keep the folder from being removed.
  const fs::path folder = memory_folder(run_dir), going = folder.string() + fmt::format(".{}", ::getpid());
  fs::rename(folder, going, ignored);
  fs::remove_all(going, ignored);
  fs::remove(folder.parent_path(), ignored);  // if no other run is there
  fs::remove(run_dir / id_name, ignored);
}

int64_t held_by_memory_copies(const fs::path& run_dir) {
  const auto folder = find_memory_copies(run_dir);
  if (!folder) return 0;
  int64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(*folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;
    const uintmax_t size = entry->is_regular_file(gone) ? entry->file_size(gone) : 0;
    if (!gone) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

std::optional<int64_t> free_memory_for_copies() {
  struct statvfs system {};
  if (::statvfs(memory, &system) != 0) return std::nullopt;
  return static_cast<int64_t>(system.f_bavail) * static_cast<int64_t>(system.f_frsize);
}

}  // namespace pptrain::app
