// What a rank is doing, in the schedule's words, for the reports of failures; and whether its thread hangs in
// the kernel.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace pptrain::comm {

// wait: for another rank. storage: reads or writes files; a call into the kernel may then last long without a
// fault.
enum class ActivityKind : uint8_t { work, wait, storage };

// Set by the rank's thread for each action, read by the threads that report.
//
// If a device does the work, an action is only what the host has enqueued, perhaps far ahead. So the rank's
// thread leaves a mark behind the work of each action, and a thread that may wait for the device's driver
// checks from time to time which marks are passed.
class Activity {
 public:
  struct State {
    ActivityKind doing = ActivityKind::work;
    // "F stage 6 microbatch 9"; of a wait, what it is for. "... (its GPU: F stage 6 microbatch 4)" if the
    // device was behind at the last look.
    std::string text;
    double seconds = 0;  // since it began
  };

  void set(ActivityKind doing, std::string_view text);
  State state() const;

  // The rank's thread calls it when the device's work for `text` is enqueued. passed: whether it is done. Any
  // thread may call it, even two at once, and any thread destroys it when no thread calls it any more.
  void enqueued(std::string text, std::function<bool()> passed);
  // The first work that the device had not done at this look, "" for none. Called by one thread. May wait for
  // the driver; no other thread waits for it then.
  std::string look_at_device();
  // How much of that work it has done, as far as looks and enqueued() have seen.
  int64_t ended_on_device() const;

 private:
  friend class ActivityScope;
  using Clock = std::chrono::steady_clock;
  struct Mark;

  State own_state() const;  // without the device
  std::shared_ptr<const Mark> drop_passed();

  mutable std::mutex mutex_;
  // Libraries, drivers and weights are loaded.
  ActivityKind doing_ = ActivityKind::storage;
  std::string text_ = "start-up";
  Clock::time_point since_ = Clock::now();
  std::string device_text_;

  // Not held while a mark is asked, which may wait for the driver.
  mutable std::mutex marks_mutex_;
  std::deque<std::shared_ptr<const Mark>> marks_;  // oldest first
  int64_t passed_ = 0;
};

// An activity for as long as it lives; then the earlier one goes on. Nothing without an Activity.
class ActivityScope {
 public:
  ActivityScope(Activity* activity, ActivityKind doing, std::string_view text);
  ~ActivityScope();
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

 private:
  Activity* activity_;
  Activity::State before_;
};

struct RankState {
  int rank = 0;
  std::string host;  // "" if all ranks share a process
  Activity::State state;
};

// "rank 4", "rank 4 (host b)"
std::string rank_name(int rank, const std::string& host);
// "is in F stage 6 microbatch 9 for 612.3 s", "waits for RECV_B stage 5 microbatch 7 for 612.3 s"
std::string describe(const Activity::State& state);
// What the ranks other than `but` do. Ranks that wait for no other rank come first: the others wait for them.
// Beyond `at_most` ranks only their number is given. "" for none.
std::string describe_others(std::span<const RankState> states, int but, int at_most = 8);

// Watches one thread for uninterruptible sleep (state D of proc(5)): the kernel waits for a disk, a network
// file system or a device, and no signal gets through. Work on files goes in and out of that state, which
// shows in the count of the thread's context switches; one sleep without a switch is one wait for an answer
// that does not come. A thread that waits for other ranks sleeps interruptibly and is never taken for stuck.
class KernelSleep {
 public:
  using Clock = std::chrono::steady_clock;

  explicit KernelSleep(pid_t thread) : thread_(thread) {}

  // How long the present sleep has lasted, as far as earlier looks tell. 0 if there is none or /proc does not
  // say.
  std::chrono::milliseconds look(Clock::time_point now);
  // Forgets the earlier looks: the process stood still since.
  void forget() { since_.reset(); }
  // The kernel function that sleeps, "" if the kernel does not tell.
  std::string where() const;

 private:
  // Context switches of the thread, voluntary and not; nothing if it is not in such a sleep.
  std::optional<long> switches_asleep() const;
  std::string read(const char* file) const;

  pid_t thread_;
  long switches_ = -1;
  std::optional<Clock::time_point> since_;
};

}  // namespace pptrain::comm
