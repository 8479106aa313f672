#include "core/fault/shutdown.h"

#include <spdlog/fmt/fmt.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "core/base/error.h"

namespace pptrain::fault {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array requests{SIGTERM, SIGINT, SIGUSR1, SIGHUP, SIGXCPU};

// Written by the handler, so all of it is lock-free: of the first request of all, of the launcher's first,
// and of the last notice.
struct Record {
  std::atomic<bool> claimed = false, there = false;
  std::atomic<int> signal = 0;
  std::atomic<int64_t> nanoseconds = 0;  // of CLOCK_MONOTONIC, which is steady_clock's
};
Record any_request, launcher_request, last_notice;
std::atomic<int> interrupts = 0;
std::atomic<int> notice_signal = 0;
std::atomic<bool> parent_is_launcher = false;
// The text that counts, and the one that is written next: the handler never meets a half of one.
constexpr size_t longest_last_words = 256;
std::array<std::array<std::atomic<char>, longest_last_words>, 2> last_words{};
std::atomic<size_t> last_words_that_count = 0;

// Eventfds that wake listeners. One that was made stays open, so that the handler never writes to a stranger.
struct Bell {
  std::atomic<bool> taken = false;
  std::atomic<int> fd = -1;
};
std::array<Bell, 16> bells;
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free &&
              std::atomic<char>::is_always_lock_free);

void ring(const Bell& bell) {
  const uint64_t one = 1;
  if (bell.fd >= 0) [[maybe_unused]]
    const auto written = write(bell.fd, &one, sizeof one);
}

void note(Record& record, int signal) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  record.signal = signal;
  record.nanoseconds = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  record.there = true;
  for (const Bell& bell : bells) ring(bell);
}

void note_first(Record& record, int signal) {
  if (!record.claimed.exchange(true)) note(record, signal);
}

[[noreturn]] void end_at_once() {
  std::array<char, longest_last_words> text{};
  std::ranges::copy(last_words.at(last_words_that_count), text.begin());
  [[maybe_unused]] const auto written = write(STDOUT_FILENO, text.data(), strnlen(text.data(), text.size()));
  _exit(130);
}

void handle(int signal, siginfo_t* info, void* /*context*/) {
  const int error = errno;
  // A negative or zero code: a process sent it, not the kernel (a terminal's Ctrl-C).
  const bool from_launcher = parent_is_launcher && info->si_code <= 0 && info->si_pid == getppid();
  if (signal == notice_signal) {
    if (from_launcher) note(last_notice, signal);
  } else {
    if (signal == SIGINT && !from_launcher && interrupts.fetch_add(1) > 0) end_at_once();
    if (from_launcher) note_first(launcher_request, signal);
    note_first(any_request, signal);
  }
  errno = error;
}

void clear(Record& record) {
  record.claimed = false;
  record.there = false;
}

std::optional<StopRequest> request_of(const Record& record) {
  if (!record.there) return std::nullopt;
  return StopRequest{.signal = record.signal,
                     .from_launcher = &record != &any_request,
                     .notice = &record == &last_notice,
                     .time = Clock::time_point(std::chrono::nanoseconds(record.nanoseconds))};
}

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

size_t take_bell() {
  for (size_t i = 0; i < bells.size(); ++i) {
    if (bells[i].taken.exchange(true)) continue;
    if (bells[i].fd < 0) bells[i].fd = eventfd(0, EFD_CLOEXEC);
    if (bells[i].fd < 0) throw Error(fmt::format("cannot make an eventfd: {}", std::strerror(errno)));
    return i;
  }
  throw Error("too many listeners for signals");
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

Shutdown::Shutdown(bool launched, std::optional<int> notice) {
  clear(any_request);
  clear(launcher_request);
  clear(last_notice);
  interrupts = 0;
  notice_signal = notice.value_or(0);
  parent_is_launcher = launched;
  set_last_words("");
  struct sigaction action {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  for (const int signal : requests) {
    if (signal != SIGHUP || !is_ignored(signal)) take(signal, action);
  }
  if (notice) take(*notice, action);
  struct sigaction ignored {};
  ignored.sa_handler = SIG_IGN;
  take(SIGPIPE, ignored);
}

void Shutdown::take(int signal, const struct sigaction& action) {
  signals_.at(count_) = signal;
  sigaction(signal, &action, &previous_.at(count_));
  ++count_;
}

Shutdown::~Shutdown() {
  for (size_t i = 0; i < count_; ++i) sigaction(signals_[i], &previous_[i], nullptr);
}

void Shutdown::keep_until_exit() {
  count_ = 0;
}

bool Shutdown::requested() const {
  return any_request.there;
}

void Shutdown::set_last_words(std::string_view text) const {
  const size_t next = 1 - last_words_that_count;
  const size_t length = std::min(text.size(), longest_last_words - 1);
  for (size_t i = 0; i < length; ++i) last_words[next][i] = text[i];
  last_words[next][length] = '\0';
  last_words_that_count = next;
}

std::optional<StopRequest> Shutdown::launchers_request() const {
  return request_of(launcher_request);
}

void Shutdown::take_launchers_request(int signal) const {
  note_first(launcher_request, signal);
  note_first(any_request, signal);
}

StopListener::StopListener(const Shutdown& shutdown, std::function<void(const StopRequest&)> heard)
    : shutdown_(shutdown), heard_(std::move(heard)), place_(take_bell()), thread_([this] { run(); }) {}

StopListener::~StopListener() {
  ending_ = true;
  ring(bells[place_]);
  thread_.join();
  bells[place_].taken = false;
}

void StopListener::catch_up() {
  const std::lock_guard lock(mutex_);
  if (const auto notice = request_of(last_notice); notice && notice->time > last_told_) {
    last_told_ = notice->time;
    heard_(*notice);
  }
  // The launcher's is noted before it counts as the first of all, which then is not reported again.
  const auto launchers = shutdown_.launchers_request();
  if (launchers && !told_launchers_) {
    told_launchers_ = told_any_ = true;
    heard_(*launchers);
  }
  if (const auto any = request_of(any_request); any && !told_any_) {
    told_any_ = true;
    heard_(*any);
  }
}

void StopListener::run() {
  while (!ending_) {
    catch_up();
    uint64_t rings = 0;
    while (::read(bells[place_].fd, &rings, sizeof rings) < 0 && errno == EINTR) {
    }
  }
}

}  // namespace pptrain::fault
