#include "parallel/comm/liveness/heartbeat.h"

#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/base/signal_block.h"
#include "parallel/comm/agreement.h"

namespace pptrain::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds patience_for_links{10'000};
// A failure of all ranks is said by the first of them.
constexpr milliseconds others_may_be_first{150};
constexpr milliseconds roll_call_time{1000};

}  // namespace

void print_now(const std::string& text) {
  const std::string line =
      fmt::format("{}pptrain: {}\n", isatty(STDERR_FILENO) == 1 ? "\n" : "", printable(text));
  pollfd entry{STDERR_FILENO, POLLOUT, 0};
  if (poll(&entry, 1, 200) > 0 && (entry.revents & POLLOUT) != 0) {
    static_cast<void>(!write(STDERR_FILENO, line.data(), line.size()));
  }
}

void end_process(int code) {
  // A thread that prints may itself be stuck.
  if (ftrylockfile(stdout) == 0) {
    pollfd entry{STDOUT_FILENO, POLLOUT, 0};
    if (poll(&entry, 1, 0) > 0) fflush_unlocked(stdout);
  }
  _exit(code);
}

std::unique_ptr<Heartbeat> Heartbeat::start(Communicator& world, Activity& activity, Options options,
                                            const std::function<void(const std::string&)>& warn) {
  if (world.size() == 1) return nullptr;
  Ring ring = make_ring(world, patience_for_links, options.address);
  const bool made = agree(world, ring.fault, [&](const std::string& faults) {
    warn(
        fmt::format("no heartbeats: a rank that is stopped or unreachable is found by distributed.timeout_s "
                    "alone. Open the hosts' firewalls for connections between the ranks, or set "
                    "distributed.heartbeat_s = 0 to run without.\n{}",
                    faults));
  });
  if (!made) return nullptr;
  return std::unique_ptr<Heartbeat>(
      new Heartbeat(world.rank(), std::move(ring), activity, std::move(options)));
}

Heartbeat::Heartbeat(int rank, Ring ring, Activity& activity, Options options)
    : rank_(rank),
      size_(static_cast<int>(ring.hosts.size())),
      hosts_(std::move(ring.hosts)),
      activity_(activity),
      options_(std::move(options)),
      period_(std::max(options_.limit / 14, milliseconds(1))),
      unwinding_(std::uncaught_exceptions()),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      kernel_sleep_(static_cast<pid_t>(syscall(SYS_gettid))) {
  if (!wake_.open()) throw Error("eventfd failed: too many open files; raise the limit with ulimit -n");
  previous_.socket = std::move(ring.previous);
  previous_.peer = (rank + size_ - 1) % size_;
  next_.socket = std::move(ring.next);
  next_.peer = (rank + 1) % size_;
  const SignalBlock block;
  thread_ = std::jthread([this] { run(); });
}

Heartbeat::~Heartbeat() {
  leave();
}

void Heartbeat::leave() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    leave_ = std::uncaught_exceptions() > unwinding_ ? Leave::at_once : Leave::in_order;
  }
  wake();
  thread_.join();
}

void Heartbeat::wake() {
  const uint64_t one = 1;
  // It fails only when the counter is full: then the thread wakes anyway.
  static_cast<void>(!::write(wake_.get(), &one, sizeof(one)));
}

bool Heartbeat::fail(const std::string& message, int code) {
  std::unique_lock lock(mutex_);
  if (rank_ != 0) changed_.wait_for(lock, others_may_be_first, [this] { return verdict_.has_value(); });
  if (verdict_) return false;
  own_failure_ = {.rank = rank_, .code = code, .said = true, .text = message};
  wake();
  changed_.wait_for(lock, roll_call_time, [this] { return verdict_.has_value(); });
  return !verdict_ || failed_here_;
}

void Heartbeat::end_with_others(milliseconds patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [this] { return verdict_.has_value(); });
  // The thread ends the process within two seconds; where it can't, the caller's exception does.
  if (verdict_ && !failed_here_) changed_.wait_for(lock, std::chrono::seconds(5), [] { return false; });
}

void Heartbeat::summon() {
  {
    const std::lock_guard lock(mutex_);
    summons_wanted_ = true;
  }
  wake();
}

void Heartbeat::on_summons(std::function<void()> heard) {
  const std::lock_guard lock(mutex_);
  on_summons_ = std::move(heard);
  if (on_summons_ && summoned_) on_summons_();
}

std::vector<RankState> Heartbeat::roll_call() {
  std::unique_lock lock(mutex_);
  const uint32_t number = ++calls_;
  wanted_call_ = number;
  answered_call_.reset();
  wake();
  const bool answered = changed_.wait_for(lock, roll_call_time,
                                          [&] { return answered_call_ && answered_call_->number == number; });
  std::vector<RankState> states;
  if (answered) states = std::move(answered_call_->states);
  lock.unlock();
  std::ranges::sort(states, {}, &RankState::rank);
  return states;
}

}  // namespace pptrain::comm
