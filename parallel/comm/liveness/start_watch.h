// Watches over a process while it waits for the other ranks to come: inside MPI_Init, or at a meeting point.
// There are no heartbeats yet, and the rank's own thread cannot be woken.
#pragma once

#include <chrono>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "parallel/comm/bootstrap.h"

namespace pptrain::comm {

class StartWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // With our MPI the process ends when the start timeout of `launch` has passed or a signal asks for it. With
  // other launchers the meeting does that, and tells the other ranks why. `stopped`: so long may another
  // process of this launch on this host be stopped; 0: for ever, and it may end. `fault`: this rank's, which
  // it will tell the others; "" for none. It is printed here if no rank has come within two seconds.
  StartWatch(Launch launch, std::chrono::milliseconds stopped, std::string fault);
  ~StartWatch();
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

  // To be called when the meeting has failed. If a rank of this host has ended, this process ends too, and
  // one of the remaining ranks says so. Otherwise it returns.
  void end_if_a_rank_is_gone();

  // Whether the fault has been said here. Nothing is said after this call.
  bool said_fault();

 private:
  void run(const std::stop_token& stop);
  std::string look_at_siblings(Clock::duration since_last);
  void give_up(const std::string& text, int code, std::unique_lock<std::mutex>& lock,
               const std::stop_token& stop);

  const Launch launch_;
  const std::chrono::milliseconds stopped_;
  const std::string fault_;
  std::mutex mutex_;
  bool fault_said_ = false;
  bool first_here_;  // no other rank of this host that could speak is before this one
  struct Sibling;
  std::vector<Sibling> siblings_;  // seen so far
  std::jthread thread_;
};

}  // namespace pptrain::comm
