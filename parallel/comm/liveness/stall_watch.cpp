#include "parallel/comm/liveness/stall_watch.h"

#include <c10/core/DeviceGuard.h>
#include <spdlog/fmt/fmt.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <utility>

#include "core/base/log.h"
#include "core/base/process.h"
#include "core/base/threads.h"
#include "core/base/timing.h"
#include "parallel/comm/wait_timeout.h"

namespace pptrain::comm {

StallWatch::StallWatch(std::deque<Activity>& ranks, Options options)
    : ranks_(ranks), options_(std::move(options)) {
  const SignalBlock block;
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

// A GPU that fails throws when it is asked; the thread of its rank reports that.
void StallWatch::run(const std::stop_token& stop) try {
  const c10::OptionalDeviceGuard guard(options_.device.is_cpu() ? std::nullopt
                                                                : std::optional(options_.device));
  int64_t before = -1;
  std::optional<PatientDeadline> deadline;
  while (sleep_until_stopped(stop, options_.look_every)) {
    const std::string work = look();
    int64_t ended = 0;
    for (const Activity& rank : ranks_) ended += rank.ended_on_device();
    if (work.empty() || std::exchange(before, ended) != ended) {
      deadline.emplace(options_.timeout);
    } else if (deadline && deadline->passed()) {
      options_.say(
          fmt::format("for {:.1f} s no GPU has ended any pass: {}. It is stuck, or slower than "
                      "distributed.timeout_s. The process ends.",
                      in_seconds(options_.timeout), work));
      options_.end(exit_failed);
      return;
    }
  }
} catch (const std::exception& error) {
  log_of(Subsystem::comm).debug("the GPUs are no longer watched: {}", error.what());
}

std::string StallWatch::look() {
  std::string all;
  int number = 0;
  for (Activity& rank : ranks_) {
    const std::string text = rank.look_at_device();
    if (!text.empty())
      all += fmt::format("{}the GPU of rank {} is in {}", all.empty() ? "" : ", ", number, text);
    ++number;
  }
  return all;
}

}  // namespace pptrain::comm
