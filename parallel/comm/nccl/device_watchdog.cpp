#include "parallel/comm/nccl/device_watchdog.h"

#include <spdlog/fmt/fmt.h>

#include <exception>
#include <utility>

#include "core/base/signal_block.h"
#include "parallel/comm/wait_timeout.h"

namespace pptrain::comm {
namespace {

constexpr int failure_exit_code = 1;

}  // namespace

DeviceWatchdog::DeviceWatchdog(DeviceWatch::Hooks hooks, Options options)
    : watch_(std::move(hooks)), options_(std::move(options)) {
  const SignalBlock block;
  thread_ = std::jthread([this] { run(); });
}

DeviceWatchdog::~DeviceWatchdog() {
  stop();
}

void DeviceWatchdog::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void DeviceWatchdog::run() {
  try {
    if (options_.on_thread) options_.on_thread();
  } catch (const std::exception& error) {
    watch_.fail({DeviceFailure::Kind::fault, error.what()});
  }
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, options_.look_every, [this] { return stop_; })) {
    lock.unlock();
    const bool failed = watch_.look();
    lock.lock();
    if (failed) return wait_for_the_end(lock);
  }
}

void DeviceWatchdog::wait_for_the_end(std::unique_lock<std::mutex>& lock) {
  PatientDeadline deadline(options_.grace);
  while (!deadline.passed()) {
    if (wake_.wait_until(lock, deadline.next_look(), [this] { return stop_; })) return;
  }
  lock.unlock();
  options_.say(
      fmt::format("{}. NCCL is aborted, but the rank has not come back within {:.0f} s: it is held by "
                  "its GPU, or by other work. The process ends.",
                  watch_.failure()->text, std::chrono::duration<double>(options_.grace).count()));
  options_.end(failure_exit_code);
}

}  // namespace pptrain::comm
