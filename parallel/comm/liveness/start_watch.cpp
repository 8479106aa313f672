#include "parallel/comm/liveness/start_watch.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/process.h"
#include "core/base/threads.h"
#include "core/base/timing.h"
#include "parallel/comm/liveness/heartbeat.h"

namespace pptrain::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds check_every{100};
constexpr milliseconds siblings_every{500};
constexpr milliseconds standstill{2000};  // between two looks: this process was stopped itself
constexpr milliseconds say_fault_after{2000};
constexpr milliseconds gone_for{1000};
constexpr milliseconds time_for_others{500};

// --- the other processes of this launch on this host ---

namespace fs = std::filesystem;

std::string read(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The children of each of its threads: the kernel lists them by thread.
std::vector<pid_t> children(pid_t parent) {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& thread : fs::directory_iterator(fmt::format("/proc/{}/task", parent), error)) {
    std::ifstream list(thread.path() / "children");
    for (pid_t child = 0; list >> child;) found.push_back(child);
  }
  return found;
}

bool same_launch(const Launch& a, const Launch& b) {
  return a.kind == b.kind && a.world_size == b.world_size && a.rendezvous.host == b.rendezvous.host &&
         a.rendezvous.port == b.rendezvous.port && a.rendezvous.prefix == b.rendezvous.prefix;
}

// Its rank, if it is a process of `ours`.
std::optional<int> rank_of(pid_t pid, const Launch& ours) {
  const std::string all = read(fmt::format("/proc/{}/environ", pid));
  const auto get = [&](const char* variable) -> const char* {
    const std::string wanted = std::string(variable) + "=";
    size_t at = 0;
    while (at < all.size() && all.compare(at, wanted.size(), wanted) != 0) {
      at = all.find('\0', at);
      if (at != std::string::npos) ++at;
    }
    return at < all.size() ? all.data() + at + wanted.size() : nullptr;
  };
  try {
    const Launch launch = detect_launch(get);
    if (same_launch(launch, ours)) return launch.rank;
  } catch (const std::exception&) {
    // Not one of ours.
  }
  return std::nullopt;
}

// The state is behind the program's name, which is in brackets and may hold anything.
bool is_stopped(pid_t pid) {
  const std::string text = read(fmt::format("/proc/{}/stat", pid));
  const size_t end = text.rfind(')');
  return end != std::string::npos && end + 2 < text.size() && (text[end + 2] == 'T' || text[end + 2] == 't');
}

// Children of this process' parent (mpirun's daemon, srun's, torchrun's agent, a shell) that run this program
// with a rank of `launch` in their environment, and these ranks; without this process itself. Empty if /proc
// does not tell.
std::map<pid_t, int> find_siblings(const Launch& launch) {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  std::map<pid_t, int> found;
  for (const pid_t pid : children(getppid())) {
    if (pid == getpid() || fs::read_symlink(fmt::format("/proc/{}/exe", pid), error) != program) continue;
    if (const auto rank = rank_of(pid, launch)) found.emplace(pid, *rank);
  }
  return found;
}

}  // namespace

// Another process of this launch on this host.
struct StartWatch::Sibling {
  pid_t pid = 0;
  int rank = 0;
  // For how long it is stopped (by SIGSTOP, a terminal or a debugger), or ended, as far as this process has
  // seen.
  Clock::duration stopped{0}, gone{0};
};

StartWatch::StartWatch(Launch launch, milliseconds stopped, std::string fault)
    : launch_(std::move(launch)),
      stopped_(stopped),
      fault_(std::move(fault)),
      first_here_(launch_.rank == 0) {
  const SignalBlock block;
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

StartWatch::~StartWatch() = default;

void StartWatch::end_if_a_rank_is_gone() {
  std::unique_lock lock(mutex_);
  const std::string text = look_at_siblings(gone_for + milliseconds(1));
  if (!text.empty()) give_up(text, exit_failed, lock, thread_.get_stop_token());
}

bool StartWatch::said_fault() {
  const std::lock_guard lock(mutex_);
  return std::exchange(fault_said_, true) && !fault_.empty();
}

void StartWatch::run(const std::stop_token& stop) {
  auto last = Clock::now();
  auto last_siblings = last;
  Clock::duration waited{0};
  const bool mpi = starts_our_mpi(launch_);
  const auto& timeout = launch_.rendezvous.timeout;
  const auto& stop_requested = launch_.rendezvous.stopped;
  {
    const std::lock_guard lock(mutex_);
    look_at_siblings(Clock::duration(0));
  }
  while (sleep_until_stopped(stop, check_every)) {
    std::unique_lock lock(mutex_);
    const auto now = Clock::now();
    const auto gap = now - std::exchange(last, now);
    // A process that stood still together with this one is not at fault.
    waited += std::min<Clock::duration>(gap, standstill);
    if (gap > standstill) siblings_.clear();
    if (mpi && stop_requested && stop_requested()) {
      return give_up("stopped by a signal before all ranks had come; nothing was changed", exit_stopped, lock,
                     stop);
    }
    if (!fault_.empty() && !fault_said_ && waited >= say_fault_after) {
      fault_said_ = true;
      print_now(fmt::format("rank {}: {}", launch_.rank, fault_));
    }
    if (mpi && timeout.count() > 0 && waited >= timeout) {
      return give_up(fmt::format("rank {} has waited {:.0f} s for all {} ranks to come: one of them has not "
                                 "started, is stopped, or can't be reached (distributed.start_timeout_s)",
                                 launch_.rank, in_seconds(waited), launch_.world_size),
                     exit_failed, lock, stop);
    }
    if (stopped_.count() == 0 || now - last_siblings < siblings_every) continue;
    const auto since = now - std::exchange(last_siblings, now);
    if (const std::string text = look_at_siblings(since); !text.empty())
      return give_up(text, exit_failed, lock, stop);
  }
}

// The fault of a rank of this host, "" for none. A rank that ends before all have come has failed, whatever
// it printed; it is given a second, in which a fault that all ranks agree on ends this process too.
std::string StartWatch::look_at_siblings(Clock::duration since_last) {
  first_here_ = true;
  const std::map<pid_t, int> present = find_siblings(launch_);
  for (const auto& [pid, rank] : present) {
    if (std::ranges::find(siblings_, pid, &Sibling::pid) == siblings_.end())
      siblings_.push_back({.pid = pid, .rank = rank});
  }
  for (Sibling& seen : siblings_) {
    const bool here = present.contains(seen.pid), stopped = here && is_stopped(seen.pid);
    if (here) seen.stopped = stopped ? seen.stopped + since_last : Clock::duration(0);
    seen.gone = here ? Clock::duration(0) : seen.gone + since_last;
    if (here && !stopped) first_here_ = first_here_ && launch_.rank < seen.rank;
  }
  for (const Sibling& seen : siblings_) {
    if (seen.stopped > stopped_) {
      return fmt::format(
          "rank {} (process {} on this host) has been stopped for {:.1f} s (SIGSTOP, a debugger), "
          "and the other ranks wait for it to come",
          seen.rank, seen.pid, in_seconds(seen.stopped));
    }
    if (seen.gone > gone_for) {
      return fmt::format("rank {} (process {} on this host) has ended before all ranks had come", seen.rank,
                         seen.pid);
    }
  }
  return "";
}

void StartWatch::give_up(const std::string& text, int code, std::unique_lock<std::mutex>& lock,
                         const std::stop_token& stop) {
  // The first rank of a host speaks; the others leave it the time to do so, since a launcher may end all when
  // one ends.
  const auto time = first_here_ ? milliseconds(0) : time_for_others;
  const bool speaks = first_here_;
  lock.unlock();
  if (!sleep_until_stopped(stop, time)) return;
  if (speaks) print_now(text);
  end_process(code);
}

}  // namespace pptrain::comm
