// Threads that share a loop, threads that take no signals, and threads that look at something from time to
// time.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "core/base/cores.h"

namespace pptrain {

// While it lives, this thread and the threads that it starts take no signals: those that only serve others
// leave them to the program's own.
class SignalBlock {
 public:
  SignalBlock() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalBlock() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalBlock(const SignalBlock&) = delete;
  SignalBlock& operator=(const SignalBlock&) = delete;

 private:
  sigset_t before_{};
};

// Sleeps. Returns false, at once, when `stop` is requested.
inline bool sleep_until_stopped(const std::stop_token& stop, std::chrono::steady_clock::time_point until) {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock(mutex);
  return !wake.wait_until(lock, stop, until, [&] { return stop.stop_requested(); });
}
inline bool sleep_until_stopped(const std::stop_token& stop, std::chrono::steady_clock::duration time) {
  return sleep_until_stopped(stop, std::chrono::steady_clock::now() + time);
}

// Calls body(0) to body(count - 1), by so many threads, 0: as many as the process has cores. Throws the last
// exception of any thread; the thread that it ended takes no further number.
inline void for_each_in_parallel(size_t count, const std::function<void(size_t)>& body, size_t threads = 0) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      for (size_t i = next++; i < count; i = next++) body(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    if (threads == 0) threads = static_cast<size_t>(core_count());
    for (size_t i = 1; i < std::min(threads, count); ++i) others.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace pptrain
