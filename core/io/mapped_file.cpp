#include "core/io/mapped_file.h"

#include <spdlog/fmt/fmt.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/io/files.h"

namespace pptrain::io {

// Entries are never freed, since a signal can come at any time; those that are given back are used again.
struct MappedFile::Entry {
  std::atomic<uintptr_t> begin = 0;  // 0: not in use
  std::atomic<size_t> size = 0;
  std::string path;  // read by the handler only while `begin` is set
  Entry* next = nullptr;
};

namespace {

using Entry = MappedFile::Entry;

static_assert(std::atomic<uintptr_t>::is_always_lock_free && std::atomic<Entry*>::is_always_lock_free);

std::atomic<Entry*> entries = nullptr;
std::mutex entries_mutex;  // for adding and removing; the handler never takes it

std::array<char, 128> host{};
bool on_terminal = false;

Entry* find_free() {
  for (Entry* entry = entries; entry != nullptr; entry = entry->next) {
    if (entry->begin == 0) return entry;
  }
  auto* const entry = new Entry;  // NOLINT(cppcoreguidelines-owning-memory): it lives as long as the process
  entry->next = entries;
  entries = entry;
  return entry;
}

// From here on bus errors within these bytes are attributed to the file `path`, until `begin` is 0 again.
Entry* add_entry(std::span<const std::byte> bytes, const std::filesystem::path& path) {
  const std::lock_guard lock(entries_mutex);
  Entry* const entry = find_free();
  entry->path = path.string();
  entry->size = bytes.size();
  entry->begin = reinterpret_cast<uintptr_t>(bytes.data());
  return entry;
}

const Entry* find(uintptr_t address) {
  for (const Entry* entry = entries.load(); entry != nullptr; entry = entry->next) {
    const uintptr_t begin = entry->begin.load();
    if (begin != 0 && address >= begin && address - begin < entry->size.load()) return entry;
  }
  return nullptr;
}

// Text put together and written without anything that a signal handler must not call.
class Message {
 public:
  void add(std::initializer_list<std::string_view> texts) {
    for (const std::string_view text : texts) {
      const size_t count = std::min(text.size(), text_.size() - size_);
      std::memcpy(text_.data() + size_, text.data(), count);
      size_ += count;
    }
  }
  void write() const {
    std::string_view rest(text_.data(), size_);
    while (!rest.empty()) {
      const ssize_t count = ::write(STDERR_FILENO, rest.data(), rest.size());
      if (count <= 0) return;
      rest.remove_prefix(static_cast<size_t>(count));
    }
  }

 private:
  std::array<char, 5120> text_{};
  size_t size_ = 0;
};

void on_bus_error(int /*signal*/, siginfo_t* info, void* /*context*/) {
  Message message;
  message.add({on_terminal ? "\n" : "", "pptrain: "});  // behind a progress bar
  const Entry* const entry = find(reinterpret_cast<uintptr_t>(info->si_addr));
  const bool memory_failed = info->si_code == BUS_MCEERR_AR || info->si_code == BUS_MCEERR_AO;
  if (memory_failed) {
    message.add({"a memory module of host ", host.data(),
                 " failed (machine check); resume the run on another host\n"});
  } else if (entry != nullptr) {
    message.add({"'", entry->path, "' can no longer be read on host ", host.data(),
                 ": the file was shortened while it was in use, or its device failed. Restore it, and start "
                 "the same command again\n"});
  } else {
    message.add({"a bus error on host ", host.data(),
                 ": memory that the system promised is not there (is /dev/shm full?)\n"});
  }
  message.write();
  if (memory_failed || entry != nullptr) _exit(1);
  std::signal(SIGBUS, SIG_DFL);  // the access is tried again and ends the process
}

}  // namespace

void report_file_faults() {
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  on_terminal = ::isatty(STDERR_FILENO) == 1;
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
  std::signal(SIGXFSZ, SIG_IGN);
}

namespace {

// Behind a message of ENOMEM: a mapping takes no memory before it is read, so the process has too many. "" if
// the system does not say how many it allows.
std::string too_many_mappings() {
  std::ifstream file("/proc/sys/vm/max_map_count");
  int64_t most = 0;
  if (!(file >> most)) return "";
  return fmt::format(
      ". A process may have {} mappings (vm.max_map_count), and each rank in it maps each file: join the "
      "files, start fewer ranks in a process, or have the number raised (sysctl vm.max_map_count)",
      most);
}

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const RegularFile file(path_);
  if (file.size() == 0) return;
  void* const memory = ::mmap(nullptr, file.size(), PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (memory == MAP_FAILED) {
    const int error = errno;
    const std::string reason = file_error("cannot map", path_, error).what();
    throw Error(error == ENOMEM ? reason + too_many_mappings() : reason);
  }
  bytes_ = {static_cast<const std::byte*>(memory), file.size()};
  entry_ = add_entry(bytes_, path_);
}

MappedFile::~MappedFile() {
  if (entry_ != nullptr) entry_->begin = 0;
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      bytes_(std::exchange(other.bytes_, {})),
      entry_(std::exchange(other.entry_, nullptr)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(entry_, other.entry_);
  return *this;
}

}  // namespace pptrain::io
