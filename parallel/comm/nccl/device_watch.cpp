#include "parallel/comm/nccl/device_watch.h"

#include <c10/util/Exception.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/base/threads.h"
#include "core/base/timing.h"
#include "parallel/comm/operands.h"
#include "parallel/comm/wait_timeout.h"

namespace pptrain::comm {

struct DeviceWatch::Entry {
  explicit Entry(Operation o) : operation(std::move(o)) {}

  const Operation operation;

  // Used by the watching thread alone.
  bool begun = false;
  std::optional<PatientDeadline> time;  // while it runs

  // Guarded by the watch's lock.
  std::string purpose;
  std::vector<at::Tensor> tensors;
};

DeviceWatch::Ticket DeviceWatch::post(Operation operation) {
  auto ticket = std::make_shared<Entry>(std::move(operation));
  const std::lock_guard lock(mutex_);
  entries_.push_back(ticket);
  return ticket;
}

void DeviceWatch::explain(const Ticket& ticket, std::string purpose) {
  const std::lock_guard lock(mutex_);
  ticket->purpose = std::move(purpose);
}

void DeviceWatch::keep(const Ticket& ticket, std::vector<at::Tensor> tensors) {
  const std::lock_guard lock(mutex_);
  ticket->tensors = std::move(tensors);
}

void DeviceWatch::throw_if_failed() const {
  if (!failed_) return;
  const std::lock_guard lock(mutex_);
  switch (failure_->kind) {
    case DeviceFailure::Kind::timeout:
      throw WaitTimeout(failure_->text);
    case DeviceFailure::Kind::peer:
      throw PeerFailure(failure_->text);
    default:
      throw Error(failure_->text);
  }
}

// Looks at the oldest alone: the rest is left to the thread.
void DeviceWatch::check() {
  throw_if_failed();
  for (;;) {
    Ticket oldest;  // let go without the lock
    {
      const std::lock_guard lock(mutex_);
      if (entries_.empty()) return;
      oldest = entries_.front();
    }
    if (!oldest->operation.finished()) return;
    forget(oldest);
  }
}

void DeviceWatch::forget(const Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  if (std::erase(entries_, ticket) > 0) ++forgotten_;
}

// --- groups, and their end ---

void DeviceWatch::add(Group& group) {
  const std::lock_guard lock(groups_mutex_);
  throw_if_failed();
  groups_.insert(&group);
}

void DeviceWatch::remove(Group& group) {
  std::unique_lock lock(groups_mutex_);
  groups_.erase(&group);
  aborted_.wait(lock, [&] { return !aborting_.contains(&group); });
}

void DeviceWatch::fail(DeviceFailure failure) {
  const std::lock_guard lock(groups_mutex_);
  {
    const std::lock_guard inner(mutex_);
    if (failure_) return;
    failure_ = std::move(failure);
    failed_ = true;
  }
  const SignalBlock block;
  for (Group* group : groups_) {
    aborting_.insert(group);
    aborts_.emplace_back([this, group] {
      group->abort();
      const std::lock_guard done(groups_mutex_);
      aborting_.erase(group);
      aborted_.notify_all();
    });
  }
}

std::optional<DeviceFailure> DeviceWatch::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

// --- looks ---

bool DeviceWatch::look(Clock::time_point now) {
  if (failed_) return true;
  std::optional<DeviceFailure> found;
  try {
    found = find_failure(now);
  } catch (const c10::Error& error) {
    found = {DeviceFailure::Kind::fault, error.what_without_backtrace()};
  } catch (const std::exception& error) {
    found = {DeviceFailure::Kind::fault, error.what()};
  }
  if (found) fail(std::move(*found));
  return failed_;
}

// Checks first what names the culprit.
std::optional<DeviceFailure> DeviceWatch::find_failure(Clock::time_point now) {
  if (hooks_.host_failure) {
    if (std::string text = hooks_.host_failure(); !text.empty()) {
      return DeviceFailure{DeviceFailure::Kind::peer, std::move(text)};
    }
  }
  if (auto found = failure_of_groups()) return found;
  if (hooks_.device_place) place_ = hooks_.device_place();
  return find_late(now);
}

std::optional<DeviceFailure> DeviceWatch::failure_of_groups() {
  const std::lock_guard lock(groups_mutex_);
  for (Group* group : groups_) {
    if (auto found = group->failure()) return found;
  }
  return std::nullopt;
}

// The oldest unfinished operation of each queue. moved: the device has done something since the last look.
std::vector<DeviceWatch::Ticket> DeviceWatch::oldest_unfinished(Clock::time_point now, bool& moved) {
  std::vector<Ticket> entries;
  {
    const std::lock_guard lock(mutex_);
    entries.assign(entries_.begin(), entries_.end());
  }
  std::vector<Ticket> oldest;
  std::set<const void*> queues;
  for (const Ticket& entry : entries) {
    const Operation& operation = entry->operation;
    if (queues.contains(operation.queue)) continue;
    if (operation.finished()) {
      forget(entry);
      continue;
    }
    queues.insert(operation.queue);
    oldest.push_back(entry);
    if (entry->begun || !operation.ready()) continue;
    entry->begun = true;
    entry->time.emplace(operation.timeout, now);
    moved = true;
  }
  const int64_t forgotten = forgotten_;
  if (std::exchange(seen_forgotten_, forgotten) != forgotten) moved = true;
  return oldest;
}

std::optional<DeviceFailure> DeviceWatch::find_late(Clock::time_point now) {
  bool moved = false;
  const std::vector<Ticket> oldest = oldest_unfinished(now, moved);
  const bool any_begun = std::ranges::any_of(oldest, [](const Ticket& entry) { return entry->begun; });
  for (const Ticket& entry : oldest) {
    if (!entry->begun && any_begun) {
      entry->time.reset();
      continue;
    }
    if (!entry->time || (moved && !entry->begun)) entry->time.emplace(entry->operation.timeout, now);
    if (entry->time->passed(now)) return late(*entry);
  }
  return std::nullopt;
}

DeviceFailure DeviceWatch::late(const Entry& entry) {
  const Operation& operation = entry.operation;
  std::string purpose;
  {
    const std::lock_guard lock(mutex_);
    purpose = entry.purpose;
  }
  const std::string place =
      place_.empty() ? "" : fmt::format("; the GPU of rank {} is in {}", operation.rank, place_);
  if (entry.begun) {
    return {DeviceFailure::Kind::timeout, timeout_message(operation.rank, operation.timeout,
                                                          operation.description + " on the GPU", purpose) +
                                              place};
  }
  return {DeviceFailure::Kind::timeout,
          fmt::format(
              "rank {} waited {:.1f} s for its GPU to come to {}{}{}: what the GPU does before it is stuck "
              "or slower than the timeout{}",
              operation.rank, in_seconds(operation.timeout), operation.description,
              purpose.empty() ? "" : ": ", purpose, place)};
}

// --- the thread ---

DeviceWatchdog::DeviceWatchdog(DeviceWatch::Hooks hooks, Options options)
    : watch_(std::move(hooks)), options_(std::move(options)) {
  const SignalBlock block;
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void DeviceWatchdog::stop() {
  thread_ = {};  // asks it to stop, and waits for it
}

void DeviceWatchdog::run(const std::stop_token& stop) {
  try {
    if (options_.on_thread) options_.on_thread();
  } catch (const std::exception& error) {
    watch_.fail({DeviceFailure::Kind::fault, error.what()});
  }
  while (sleep_until_stopped(stop, options_.look_every)) {
    if (watch_.look()) return wait_for_the_end(stop);
  }
}

void DeviceWatchdog::wait_for_the_end(const std::stop_token& stop) {
  PatientDeadline deadline(options_.grace);
  while (!deadline.passed()) {
    if (!sleep_until_stopped(stop, deadline.next_look())) return;
  }
  options_.say(
      fmt::format("{}. NCCL is aborted, but the rank has not come back within {:.0f} s: it is held by "
                  "its GPU, or by other work. The process ends.",
                  watch_.failure()->text, in_seconds(options_.grace)));
  options_.end(exit_failed);
}

}  // namespace pptrain::comm
