// Tells whether a thread of this process hangs inside the kernel.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

namespace pptrain::comm {

// Watches one thread for uninterruptible sleep (state D of proc(5)): the kernel waits for a disk, a network
// file system or a device, and no signal gets through. Work on files goes in and out of that state, which
// shows in the count of the thread's context switches; one sleep without a switch is one wait for an answer
// that does not come. A thread that waits for other ranks sleeps interruptibly and is never taken for stuck.
class KernelSleep {
 public:
  using Clock = std::chrono::steady_clock;

  explicit KernelSleep(pid_t thread) : thread_(thread) {}

  // For how long the present sleep has lasted, as far as earlier looks tell. 0 while there is none, and where
  // /proc does not say.
  std::chrono::milliseconds look(Clock::time_point now);
  // Forgets the earlier looks: the process stood still since.
  void forget() { since_.reset(); }
  // The kernel function that sleeps, "" where the kernel does not tell.
  std::string where() const;

 private:
  struct Sample {
    bool sleeps = false;
    long switches = -1;  // voluntary and not
  };
  Sample sample() const;
  std::string read(const char* file) const;

  pid_t thread_;
  long switches_ = -1;
  std::optional<Clock::time_point> since_;
};

}  // namespace pptrain::comm
