// Threads that only serve others leave signals to the program's own threads.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace pptrain {

// While it lives, this thread and the threads that it starts take no signals.
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

}  // namespace pptrain
