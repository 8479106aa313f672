#include "core/io/atomic_file.h"

#include <linux/fs.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <span>
#include <system_error>
#include <utility>

#include "core/base/process.h"
#include "core/base/special_file.h"
#include "core/base/text.h"
#include "core/io/checksum.h"
#include "core/io/paths.h"

namespace pptrain::io {

const std::string& process_space() {
  static const std::string space = [] {
    std::error_code ignored;
    const std::string ids = std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
    const std::string both = boot_id() + ids;
    return checksum_hex(std::as_bytes(std::span(both))).substr(0, 16);
  }();
  return space;
}

std::string unique_suffix() {
  static std::atomic<int> calls = 0;
  return fmt::format("{}.{}.{}", process_space(), ::getpid(), calls++);
}

namespace {

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw file_error("cannot rename '" + from.string() + "' to", to, errno);
  }
}

// For file systems that cannot exchange two names (NFS): `to` is absent for an instant between the renames.
// The old content waits beside it under a name that is not temporary, so that after a kill nothing removes it
// as left over: one of the two is complete under a visible name.
void replace_in_steps(const std::filesystem::path& from, const std::filesystem::path& to) {
  const std::filesystem::path aside = first_free(to.string() + replaced_extension);
  rename_path(to, aside);
  try {
    rename_path(from, to);
  } catch (...) {
    rename_path(aside, to);
    throw;
  }
  rename_path(aside, from);
}

}  // namespace

int own_descriptor(const std::filesystem::path& path) {
  const std::string name = path.lexically_normal().string();
  if (name == "/dev/stdout") return STDOUT_FILENO;
  if (name == "/dev/stderr") return STDERR_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (name.starts_with(folder))
      return to_number<int>(std::string_view(name).substr(folder.size())).value_or(-1);
  }
  return -1;
}

namespace {

void write_all(int file, const std::filesystem::path& path, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = ::write(file, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw file_error("cannot write to", path, written < 0 ? errno : ENOSPC);
    content.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

void sync_file(const std::filesystem::path& path) {
  const FileDescriptor file = open_file(path, O_RDONLY);
  if (::fdatasync(file.get()) != 0) throw file_error("cannot sync", path, errno);
}

void sync_folder(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.empty() ? "." : path;
  const FileDescriptor file = open_file(folder, O_RDONLY | O_DIRECTORY);
  // Some network file systems cannot sync a folder and say EINVAL; their renames are synchronous.
  if (::fsync(file.get()) != 0 && errno != EINVAL) throw file_error("cannot sync the folder", folder, errno);
}

void sync_folders(const std::filesystem::path& root) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (entry.is_directory()) sync_folder(entry.path());
  }
  sync_folder(root);
}

void write_output(const std::filesystem::path& path, std::string_view content) {
  if (const int own = own_descriptor(path); own >= 0) return write_all(own, path, content);
  const std::string kind = special_file(path);
  std::error_code error;
  if (kind == "a directory") return write_file_atomically(path, content);
  if (kind.empty()) {
    const std::filesystem::path target = std::filesystem::canonical(path, error);
    return write_file_atomically(error ? path : target, content);
  }
  const FileDescriptor file = open_file(path, O_WRONLY | O_NOCTTY);
  write_all(file.get(), path, content);
}

NewFile::NewFile(std::filesystem::path path)
    : path_(std::move(path)),
      file_(path_.parent_path() / (".tmp_" + path_.filename().string() + "." + unique_suffix())) {}

NewFile::~NewFile() {
  std::error_code ignored;
  if (!published_) std::filesystem::remove(file_.path(), ignored);
}

void NewFile::write(std::string_view text) {
  file_.write(std::as_bytes(std::span(text)));
}

void NewFile::publish(Lasting lasting) {
  if (lasting == Lasting::yes) file_.sync_and_close();
  rename_path(file_.path(), path_);
  published_ = true;
  if (lasting == Lasting::yes) sync_folder(path_.parent_path());
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content, Lasting lasting) {
  NewFile file(path);
  file.write(content);
  file.publish(lasting);
}

bool rename_folder_synced(const std::filesystem::path& from, const std::filesystem::path& to) {
  const bool swapped = std::filesystem::exists(std::filesystem::symlink_status(to));
  if (!swapped) {
    rename_path(from, to);
  } else if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0) {
    replace_in_steps(from, to);
  }
  sync_folder(to.parent_path());
  return swapped;
}

}  // namespace pptrain::io
