// Finds out that what runs on a device has failed, and ends it: operations that are late, communicators with
// an error of their own, failures that the host knows. DeviceWatch decides, over callbacks: no CUDA, no NCCL,
// no thread. DeviceWatchdog is the thread.
//
// When time runs. The host enqueues far ahead of the device, so the time of an operation begins when the
// device comes to it:
// - Operations of one queue (a stream) run in the order of their posting. So only the oldest unfinished one
//   can have begun: it has once its `ready` point is passed. Its time runs from the look that first sees so.
// - While no operation has begun, the device is in work that is not watched, or stuck in it. The oldest of
//   each queue then has a whole timeout from the last look that saw any operation begin or end.
// Time in which the process stood still does not count (PatientDeadline).
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "parallel/comm/liveness/heartbeat.h"

namespace pptrain::comm {

struct DeviceFailure {
  // What the host's next call throws: WaitTimeout, PeerFailure, Error.
  enum class Kind { timeout, peer, fault };
  Kind kind = Kind::fault;
  std::string text;
};

class DeviceWatch {
 public:
  using Clock = std::chrono::steady_clock;
  using Reached = std::function<bool()>;  // the device has passed a point; throws if the device has failed

  // Communication on the device that can be ended. Must be removed before it goes.
  class Group {
   public:
    virtual ~Group() = default;
    // The failure that its library reports. Never blocks for long.
    virtual std::optional<DeviceFailure> failure() = 0;
    // Ends what it has on the device. Called once, in a thread of its own; may wait for the device.
    virtual void abort() noexcept = 0;
  };

  struct Operation {
    const void* queue = nullptr;
    // The points before and after it. Any thread may call them.
    Reached ready, finished;
    std::chrono::milliseconds timeout{0};
    int rank = 0;             // of the job, for messages
    std::string description;  // "a message from rank 2"
  };
  struct Entry;
  using Ticket = std::shared_ptr<Entry>;

  struct Hooks {
    // The host transport's failure, "" for none.
    std::function<std::string()> host_failure;
    // What the device is in, in the schedule's words, "" if it is not known. May wait for the driver.
    std::function<std::string()> device_place;
  };

  explicit DeviceWatch(Hooks hooks) : hooks_(std::move(hooks)) {}
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  // --- by the host thread ---
  // Called right after the operation and its `finished` point were enqueued.
  Ticket post(Operation operation);
  // Says what the rank wants it for, in the schedule's words.
  void explain(const Ticket& ticket, std::string purpose);
  // Holds them until the operation is finished.
  void keep(const Ticket& ticket, std::vector<at::Tensor> tensors);
  // Throws once something has failed; lets go of what is finished.
  void check();
  void throw_if_failed() const;

  // Throws once something has failed.
  void add(Group& group);
  // Returns once an abort of it under way has ended.
  void remove(Group& group);

  // --- by any thread ---
  // The first failure counts. All groups are aborted, each in a thread of its own: an abort waits for the
  // kernels of its group, which may be queued behind those of another.
  void fail(DeviceFailure failure);
  std::optional<DeviceFailure> failure() const;

  // --- by the thread that watches, at least once a second ---
  // True once something has failed.
  bool look(Clock::time_point now = Clock::now());

 private:
  std::optional<DeviceFailure> find_failure(Clock::time_point now);
  std::optional<DeviceFailure> failure_of_groups();
  std::optional<DeviceFailure> find_late(Clock::time_point now);
  std::vector<Ticket> oldest_unfinished(Clock::time_point now, bool& moved);
  DeviceFailure late(const Entry& entry);
  void forget(const Ticket& ticket);

  const Hooks hooks_;

  mutable std::mutex mutex_;
  std::list<Ticket> entries_;  // by posting
  std::optional<DeviceFailure> failure_;
  std::atomic<bool> failed_ = false;
  std::atomic<int64_t> forgotten_ = 0;

  std::mutex groups_mutex_;  // taken before mutex_
  std::condition_variable aborted_;
  std::set<Group*> groups_;
  std::set<Group*> aborting_;

  // Used by the watching thread alone.
  int64_t seen_forgotten_ = 0;
  std::string place_;

  std::vector<std::jthread> aborts_;
};

// The thread of a DeviceWatch. It is also the last resort if ending what runs on the device does not free the
// rank's thread: a kernel of our own that never ends holds everything that waits for the device.
class DeviceWatchdog {
 public:
  struct Options {
    std::chrono::milliseconds look_every{200};
    // After a failure the rank has so long to unwind as far as stop(); then the process ends.
    std::chrono::milliseconds grace{60'000};
    std::function<void()> on_thread;  // called first by the thread; it makes the device current
    // The thread calls them last if the rank's thread does not come back.
    std::function<void(const std::string& text)> say = print_now;
    std::function<void(int code)> end = end_process;
  };

  DeviceWatchdog(DeviceWatch::Hooks hooks, Options options);
  DeviceWatchdog(const DeviceWatchdog&) = delete;
  DeviceWatchdog& operator=(const DeviceWatchdog&) = delete;

  DeviceWatch& watch() { return watch_; }
  // Nothing is looked at or called from then on. To be called when all groups are gone.
  void stop();

 private:
  void run(const std::stop_token& stop);
  void wait_for_the_end(const std::stop_token& stop);

  DeviceWatch watch_;
  const Options options_;
  std::jthread thread_;
};

}  // namespace pptrain::comm
