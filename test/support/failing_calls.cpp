// A library to preload (LD_PRELOAD): one chosen input or output call of the program fails, or ends the
// program.
//
// Calls on files and folders below FAILING_FOLDER are counted from 1, over all threads. The counted calls can
// be limited by name (FAILING_CALLS=fsync,rename), by a part of the path (FAILING_NAME=end.json) and by rank
// of Open MPI (FAILING_RANK=1). At call number FAILING_AT, FAILING_ACTION happens:
//
//   EIO, ENOSPC, EACCES, EBUSY, ...   it does nothing and fails with this errno
//   short                             it reads or writes half of the bytes (others: as usual)
//   kill                              SIGKILL for this process; kill-parent: for its parent
//   stop                              SIGSTOP for this process
//   sleep:SECONDS                     it is done later
//   hang:SECONDS                      the same, in a sleep that nothing interrupts, as on a dead disk
//   late:SECONDS                      it is done at once and returns later; only for rename
//
// FAILING_FROM=1: also at all later calls. FAILING_LOG=FILE: each counted call adds a line "NUMBER CALL
// PATH".
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <map>
#include <string>

namespace {

std::string variable(const char* name) {
  const char* const value = ::getenv(name);
  return value != nullptr ? value : "";
}

const std::map<std::string, int> errors = {{"EIO", EIO},      {"ENOSPC", ENOSPC}, {"EACCES", EACCES},
                                           {"EBUSY", EBUSY},  {"EPERM", EPERM},   {"EROFS", EROFS},
                                           {"ESTALE", ESTALE}};

struct Settings {
  std::string folder = variable("FAILING_FOLDER");
  std::string calls = variable("FAILING_CALLS").empty() ? "" : "," + variable("FAILING_CALLS") + ",";
  std::string name = variable("FAILING_NAME");
  std::string action = variable("FAILING_ACTION");
  std::string log = variable("FAILING_LOG");
  long at = ::atol(variable("FAILING_AT").c_str());
  bool from = variable("FAILING_FROM") == "1";
  bool active = !folder.empty() && (variable("FAILING_RANK").empty() ||
                                    variable("FAILING_RANK") == variable("OMPI_COMM_WORLD_RANK"));
};

const Settings& settings() {
  static const auto* const s = new Settings;  // kept until the process ends
  return *s;
}

std::atomic<long> calls_so_far{0};

enum class Fate { usual, fail, half, late };

bool below(const std::string& path, const std::string& folder) {
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

void note(long number, const char* call, const std::string& path) {
  const std::string line = std::to_string(number) + " " + call + " " + path + "\n";
  const long fd =
      ::syscall(SYS_openat, AT_FDCWD, settings().log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (fd < 0) return;
  ::syscall(SYS_write, fd, line.data(), line.size());
  ::syscall(SYS_close, fd);
}

void sleep_for(const char* text) {
  const double seconds = ::atof(text);
  const timespec time{static_cast<time_t>(seconds),
                      static_cast<long>((seconds - static_cast<long>(seconds)) * 1e9)};
  ::nanosleep(&time, nullptr);
}

// Sets errno if the call must fail.
Fate fate(const char* call, const std::string& path) {
  const Settings& s = settings();
  if (!s.active || !below(path, s.folder) || path.find(s.name) == std::string::npos) return Fate::usual;
  if (!s.calls.empty() && s.calls.find("," + std::string(call) + ",") == std::string::npos)
    return Fate::usual;
  const long number = ++calls_so_far;
  if (!s.log.empty()) note(number, call, path);
  if (s.at == 0 || number < s.at || (number > s.at && !s.from)) return Fate::usual;
  if (s.action == "kill") ::kill(::getpid(), SIGKILL);
  if (s.action == "stop") ::kill(::getpid(), SIGSTOP);
  if (s.action == "kill-parent") ::kill(::getppid(), SIGKILL);
  if (s.action == "short") return Fate::half;
  if (s.action.starts_with("late:")) return Fate::late;
  if (s.action.starts_with("sleep:")) sleep_for(s.action.c_str() + strlen("sleep:"));
  // The parent of a vfork waits in the same state as for a disk.
  if (s.action.starts_with("hang:") && ::vfork() == 0) {
    sleep_for(s.action.c_str() + strlen("hang:"));
    ::_exit(0);
  }
  const auto error = errors.find(s.action);
  if (error == errors.end()) return Fate::usual;
  errno = error->second;
  return Fate::fail;
}

std::string path_of(int fd) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(link.c_str(), path, sizeof(path));
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "";
}

std::string path_of(int folder, const char* path) {
  if (path[0] == '/') return path;
  char here[4096];
  const std::string base =
      folder == AT_FDCWD ? (::getcwd(here, sizeof(here)) != nullptr ? here : "") : path_of(folder);
  return base + "/" + path;
}

std::string path_of(const char* path) {
  return path_of(AT_FDCWD, path);
}

template <typename Function>
Function* next(Function* /*same type*/, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

size_t half(size_t bytes) {
  return bytes > 1 ? bytes / 2 : bytes;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  static auto* const real = next<int(const char*, int, ...)>(nullptr, "open");
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return fate("open", path_of(path)) == Fate::fail ? -1 : real(path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  static auto* const real = next<int(int, const char*, int, ...)>(nullptr, "openat");
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return fate("openat", path_of(folder, path)) == Fate::fail ? -1 : real(folder, path, flags, mode);
}

ssize_t read(int fd, void* data, size_t size) {
  static auto* const real = next<ssize_t(int, void*, size_t)>(nullptr, "read");
  const Fate f = fate("read", path_of(fd));
  return f == Fate::fail ? -1 : real(fd, data, f == Fate::half ? half(size) : size);
}

ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  static auto* const real = next<ssize_t(int, void*, size_t, off_t)>(nullptr, "pread");
  const Fate f = fate("pread", path_of(fd));
  return f == Fate::fail ? -1 : real(fd, data, f == Fate::half ? half(size) : size, offset);
}

ssize_t write(int fd, const void* data, size_t size) {
  static auto* const real = next<ssize_t(int, const void*, size_t)>(nullptr, "write");
  const Fate f = fate("write", path_of(fd));
  return f == Fate::fail ? -1 : real(fd, data, f == Fate::half ? half(size) : size);
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  static auto* const real = next<ssize_t(int, const void*, size_t, off_t)>(nullptr, "pwrite");
  const Fate f = fate("pwrite", path_of(fd));
  return f == Fate::fail ? -1 : real(fd, data, f == Fate::half ? half(size) : size, offset);
}

int fsync(int fd) {
  static auto* const real = next<int(int)>(nullptr, "fsync");
  return fate("fsync", path_of(fd)) == Fate::fail ? -1 : real(fd);
}

int fflush(FILE* file) {
  static auto* const real = next<int(FILE*)>(nullptr, "fflush");
  return file != nullptr && fate("fflush", path_of(::fileno(file))) == Fate::fail ? EOF : real(file);
}

int close(int fd) {
  static auto* const real = next<int(int)>(nullptr, "close");
  const Fate f = fate("close", path_of(fd));
  const int error = errno;
  const int result = real(fd);
  if (f != Fate::fail) return result;
  errno = error;
  return -1;
}

int rename(const char* from, const char* to) noexcept {
  static auto* const real = next<int(const char*, const char*)>(nullptr, "rename");
  const Fate f = fate("rename", path_of(to));
  if (f == Fate::fail) return -1;
  const int result = real(from, to);
  if (f == Fate::late) sleep_for(settings().action.c_str() + strlen("late:"));
  return result;
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  static auto* const real = next<int(int, const char*, int, const char*, unsigned)>(nullptr, "renameat2");
  return fate("renameat2", path_of(to_folder, to)) == Fate::fail
             ? -1
             : real(from_folder, from, to_folder, to, flags);
}

int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const real = next<int(const char*, mode_t)>(nullptr, "mkdir");
  return fate("mkdir", path_of(path)) == Fate::fail ? -1 : real(path, mode);
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  static auto* const real = next<int(int, const char*, int)>(nullptr, "unlinkat");
  return fate("unlinkat", path_of(folder, path)) == Fate::fail ? -1 : real(folder, path, flags);
}

int stat(const char* path, struct stat* info) noexcept {
  static auto* const real = next<int(const char*, struct stat*)>(nullptr, "stat");
  return fate("stat", path_of(path)) == Fate::fail ? -1 : real(path, info);
}

int lstat(const char* path, struct stat* info) noexcept {
  static auto* const real = next<int(const char*, struct stat*)>(nullptr, "lstat");
  return fate("lstat", path_of(path)) == Fate::fail ? -1 : real(path, info);
}

int fstat(int fd, struct stat* info) noexcept {
  static auto* const real = next<int(int, struct stat*)>(nullptr, "fstat");
  return fate("fstat", path_of(fd)) == Fate::fail ? -1 : real(fd, info);
}

void* mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset) noexcept {
  static auto* const real = next<void*(void*, size_t, int, int, int, off_t)>(nullptr, "mmap");
  if (fd >= 0 && fate("mmap", path_of(fd)) == Fate::fail) return MAP_FAILED;
  return real(address, size, protection, flags, fd, offset);
}

}  // extern "C"
