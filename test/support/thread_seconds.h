#pragma once

#include <time.h>

#include <functional>

namespace pptrain::test {

// Seconds of the calling thread's processor time for `work`.
inline double thread_seconds(const std::function<void()>& work) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double begin = now();
  work();
  return now() - begin;
}

}  // namespace pptrain::test
