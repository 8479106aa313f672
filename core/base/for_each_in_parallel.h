// A loop whose rounds are divided among several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "core/base/cores.h"

namespace pptrain {

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
