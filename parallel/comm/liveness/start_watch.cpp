#include "parallel/comm/liveness/start_watch.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/base/signal_block.h"
#include "parallel/comm/liveness/siblings.h"

namespace pptrain::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds look_every{100};
constexpr milliseconds siblings_every{500};
constexpr milliseconds standstill{2000};  // between two looks: this process was stopped itself
constexpr milliseconds say_fault_after{2000};
constexpr milliseconds gone_for{1000};
constexpr milliseconds word_of_others{500};
constexpr int failure_exit_code = 1;

double seconds(StartWatch::Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

StartWatch::StartWatch(const Launch& launch, Options options)
    : launch_(launch), options_(std::move(options)), first_here_(launch.rank == 0) {
  const SignalBlock block;
  thread_ = std::jthread([this] { run(); });
}

StartWatch::~StartWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
}

void StartWatch::end_if_a_rank_is_gone() {
  std::unique_lock lock(mutex_);
  const std::string text = look_at_siblings(gone_for + milliseconds(1));
  if (!text.empty()) give_up(text, failure_exit_code, lock);
}

bool StartWatch::said_fault() {
  const std::lock_guard lock(mutex_);
  return std::exchange(fault_said_, true) && !options_.fault.empty();
}

void StartWatch::run() {
  auto last = Clock::now();
  auto last_siblings = last;
  Clock::duration waited{0};
  std::unique_lock lock(mutex_);
  look_at_siblings(Clock::duration(0));
  while (!wake_.wait_for(lock, look_every, [this] { return stop_; })) {
    const auto now = Clock::now();
    const auto gap = now - std::exchange(last, now);
    // What stands still with this process has no fault.
    waited += std::min<Clock::duration>(gap, standstill);
    if (gap > standstill) siblings_.clear();
    if (options_.stop_requested && options_.stop_requested()) {
      return give_up("stopped by a signal before all ranks had come; nothing was changed", stopped_exit_code,
                     lock);
    }
    if (!options_.fault.empty() && !fault_said_ && waited >= say_fault_after) {
      fault_said_ = true;
      options_.say(fmt::format("rank {}: {}", launch_.rank, options_.fault));
    }
    if (options_.timeout.count() > 0 && waited >= options_.timeout) {
      return give_up(fmt::format("rank {} has waited {:.0f} s for all {} ranks to come: one of them has not "
                                 "started, is stopped, or can't be reached (distributed.start_timeout_s)",
                                 launch_.rank, seconds(waited), launch_.world_size),
                     failure_exit_code, lock);
    }
    if (options_.stopped.count() == 0 || now - last_siblings < siblings_every) continue;
    const auto since = now - std::exchange(last_siblings, now);
    if (const std::string text = look_at_siblings(since); !text.empty())
      return give_up(text, failure_exit_code, lock);
  }
}

// What is wrong with a rank of this host, "" for nothing. A rank that ends before all have come has failed,
// whatever it said; it has a second, in which a fault that all ranks agree on ends this process too.
std::string StartWatch::look_at_siblings(Clock::duration since_last) {
  first_here_ = true;
  const std::vector<Sibling> present = find_siblings(launch_);
  for (const Sibling& sibling : present) {
    Seen& seen = siblings_[sibling.pid];
    seen.rank = sibling.rank;
    seen.stopped = sibling.stopped ? seen.stopped + since_last : Clock::duration(0);
    if (!sibling.stopped) first_here_ = first_here_ && launch_.rank < sibling.rank;
  }
  for (auto& [pid, seen] : siblings_) {
    const bool here = std::ranges::find(present, pid, &Sibling::pid) != present.end();
    seen.gone = here ? Clock::duration(0) : seen.gone + since_last;
    if (seen.stopped > options_.stopped) {
      return fmt::format(
          "rank {} (process {} on this host) has been stopped for {:.1f} s (SIGSTOP, a debugger), "
          "and the other ranks wait for it to come",
          seen.rank, pid, seconds(seen.stopped));
    }
    if (seen.gone > gone_for) {
      return fmt::format("rank {} (process {} on this host) has ended before all ranks had come", seen.rank,
                         pid);
    }
  }
  return "";
}

void StartWatch::give_up(const std::string& text, int code, std::unique_lock<std::mutex>& lock) {
  // The first of a host has the word; the others leave it the time to say it, since a launcher may end all
  // when one ends.
  const auto time = first_here_ ? milliseconds(0) : word_of_others;
  if (wake_.wait_for(lock, time, [this] { return stop_; })) return;
  if (first_here_) options_.say(text);
  options_.end(code);
}

}  // namespace pptrain::comm
