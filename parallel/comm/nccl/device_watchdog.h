// The thread of a DeviceWatch, and the last resort where ending what runs on the device does not free the
// rank's thread: a kernel of our own that never ends holds everything that waits for the device.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "parallel/comm/liveness/heartbeat.h"
#include "parallel/comm/nccl/device_watch.h"

namespace pptrain::comm {

class DeviceWatchdog {
 public:
  struct Options {
    std::chrono::milliseconds look_every{200};
    // So long after a failure the rank may take to unwind as far as stop(); then the process ends.
    std::chrono::milliseconds grace{60'000};
    std::function<void()> on_thread;  // called first by the thread; it makes the device current
    // The last things that the thread does in a process that does not come back.
    std::function<void(const std::string& text)> say = print_now;
    std::function<void(int code)> end = end_process;
  };

  DeviceWatchdog(DeviceWatch::Hooks hooks, Options options);
  ~DeviceWatchdog();
  DeviceWatchdog(const DeviceWatchdog&) = delete;
  DeviceWatchdog& operator=(const DeviceWatchdog&) = delete;

  DeviceWatch& watch() { return watch_; }
  // Nothing is looked at or called from then on. To be called when all groups are gone.
  void stop();

 private:
  void run();
  void wait_for_the_end(std::unique_lock<std::mutex>& lock);

  DeviceWatch watch_;
  const Options options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::jthread thread_;
};

}  // namespace pptrain::comm
