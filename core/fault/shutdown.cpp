#include "core/fault/shutdown.h"

#include <unistd.h>

#include <atomic>

namespace pptrain::fault {

namespace {

constexpr std::array signals{SIGTERM, SIGINT, SIGUSR1};

std::atomic<bool> flag = false;
std::atomic<int> interrupts = 0;
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void handle(int signal) {
  if (signal == SIGINT && interrupts.fetch_add(1) > 0) _exit(130);
  flag = true;
}

}  // namespace

Shutdown::Shutdown() {
  flag = false;
  interrupts = 0;
  struct sigaction action {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &action, &previous_[i]);
}

Shutdown::~Shutdown() {
  for (size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &previous_[i], nullptr);
}

bool Shutdown::requested() const {
  return flag;
}

}  // namespace pptrain::fault
