// Ends a process whose GPUs are in a pass that does not end. Where ranks are threads of one process, no other
// process misses them and no transport has a time limit.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <deque>
#include <functional>
#include <stop_token>
#include <string>
#include <thread>

#include "parallel/comm/liveness/activity.h"
#include "parallel/comm/liveness/heartbeat.h"

namespace pptrain::comm {

class StallWatch {
 public:
  struct Options {
    // GPUs may have passes to do for so long without ending one.
    std::chrono::milliseconds timeout{0};
    c10::Device device = at::kCPU;  // is made current on the thread that watches
    std::chrono::milliseconds look_every{1000};
    // The thread calls them at the end.
    std::function<void(const std::string& text)> say = print_now;
    std::function<void(int code)> end = end_process;
  };

  // ranks: those of this process; they must outlive this.
  StallWatch(std::deque<Activity>& ranks, Options options);
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

 private:
  void run(const std::stop_token& stop);
  std::string look();  // what the GPUs have to do; "" if nothing

  std::deque<Activity>& ranks_;
  const Options options_;
  std::jthread thread_;
};

}  // namespace pptrain::comm
