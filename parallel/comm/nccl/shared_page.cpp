#include "parallel/comm/nccl/shared_page.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <spdlog/fmt/fmt.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>
#include <random>
#include <string>
#include <system_error>

namespace pptrain::comm {
namespace {

// The kernel finds the word by its place in the page, so it serves several processes. Spurious returns are
// harmless.
long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* longest) {
  static_assert(sizeof(word) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);
  return syscall(SYS_futex, &word, operation, value, longest, nullptr, 0);
}

[[noreturn]] void fail_with(const char* what) {
  throw Error(fmt::format("{}: {}", what, std::generic_category().message(errno)));
}

}  // namespace

void PageBell::ring() {
  ++rings_;
  futex(rings_, FUTEX_WAKE, INT_MAX, nullptr);
}

void PageBell::fail() {
  failed_ = true;
  ring();
}

void PageBell::await(const std::function<bool()>& ready, const std::function<bool()>& ended) {
  constexpr timespec look_again{.tv_sec = 0, .tv_nsec = 100'000'000};
  for (;;) {
    const uint32_t seen = rings_;
    if (ready()) return;
    if (failed_ || ended()) throw LinkEnded("the other process of a link has ended");
    futex(rings_, FUTEX_WAIT, seen, &look_again);
  }
}

SharedPage::SharedPage(size_t bytes) : file_(memfd_create("pptrain_link", MFD_CLOEXEC)) {
  if (!file_.open() || ftruncate(file_.get(), static_cast<off_t>(bytes)) != 0) fail_with("memfd_create");
  name_.process = getpid();
  name_.descriptor = file_.get();
  map(file_, bytes);
}

SharedPage::SharedPage(const PageName& name, size_t bytes) : name_(name) {
  const std::string path = fmt::format("/proc/{}/fd/{}", name.process, name.descriptor);
  const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.open()) fail_with("the other process's shared page");
  // A page outside a file's end cannot be read: another process may have this number in its container.
  if (lseek(file.get(), 0, SEEK_END) != static_cast<off_t>(bytes))
    throw Error("the other process's shared page is not to be reached");
  map(file, bytes);
}

uint64_t SharedPage::new_key() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

void SharedPage::map(const FileDescriptor& file, size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) fail_with("mmap of a shared page");
  memory_ = {memory, [bytes](void* mapped) { munmap(mapped, bytes); }};
}

}  // namespace pptrain::comm
