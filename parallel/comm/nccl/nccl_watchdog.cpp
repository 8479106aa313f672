#include "parallel/comm/nccl/nccl_watchdog.h"

#include <c10/cuda/CUDAGuard.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>

#include "core/base/error.h"

namespace pptrain::comm {
namespace {

constexpr std::chrono::milliseconds look_every{200};
// A longer gap between two looks: the whole process stood still (Ctrl-Z), perhaps all ranks did.
constexpr std::chrono::seconds standstill{3};

}  // namespace

void check_nccl(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) return;
  const char* detail = ncclGetLastError(nullptr);
  throw Error(fmt::format("{} failed: {}{}{}; NCCL_DEBUG=INFO in the environment shows more", call,
                          ncclGetErrorString(result), detail != nullptr && *detail != '\0' ? ": " : "",
                          detail != nullptr ? detail : ""));
}

NcclWatchdog::NcclWatchdog(c10::DeviceIndex device) : device_(device), thread_([this] { run(); }) {}

NcclWatchdog::~NcclWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
}

void NcclWatchdog::add(ncclComm_t comm) {
  const std::lock_guard lock(mutex_);
  comms_.push_back(comm);
}

void NcclWatchdog::remove(ncclComm_t comm, bool in_order) {
  {
    const std::lock_guard lock(mutex_);
    if (std::erase(comms_, comm) == 0) return;
  }
  static_cast<void>(in_order ? ncclCommDestroy(comm) : ncclCommAbort(comm));
}

void NcclWatchdog::watch(NcclEvent event, std::vector<at::Tensor> tensors, Clock::time_point deadline,
                         std::string what) {
  const std::lock_guard lock(mutex_);
  entries_.push_back({std::move(event), std::move(tensors), deadline, std::move(what)});
}

void NcclWatchdog::check() {
  if (failed_) {
    const std::lock_guard lock(mutex_);
    throw Error(failure_);
  }
  reap(/*all=*/false);
}

// The entries come in the order of their posting: looking at the oldest first is enough in between.
void NcclWatchdog::reap(bool all) {
  std::list<Entry> reached;  // released without the lock
  const std::lock_guard lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    if (entry->event->query()) {
      reached.splice(reached.end(), entries_, entry);
    } else if (!all) {
      return;
    }
    entry = next;
  }
}

void NcclWatchdog::run() {
  const c10::cuda::CUDAGuard guard(device_);
  std::unique_lock lock(mutex_);
  auto last = Clock::now();
  while (!wake_.wait_for(lock, look_every, [this] { return stop_; })) {
    const auto now = Clock::now();
    const auto gap = now - std::exchange(last, now);
    if (gap > standstill) {
      for (Entry& entry : entries_) entry.deadline += gap;
    }
    lock.unlock();
    try {
      reap(/*all=*/true);
      if (const std::string failure = find_failure(); !failure.empty()) return abort_all(failure);
    } catch (const std::exception& e) {
      return abort_all(e.what());  // an error of the device
    }
    lock.lock();
  }
}

std::string NcclWatchdog::find_failure() {
  const std::lock_guard lock(mutex_);
  for (ncclComm_t comm : comms_) {
    ncclResult_t state = ncclSuccess;
    if (ncclCommGetAsyncError(comm, &state) == ncclSuccess && state != ncclSuccess &&
        state != ncclInProgress) {
      const char* detail = ncclGetLastError(comm);
      return fmt::format("NCCL lost a peer: {}: {}", ncclGetErrorString(state),
                         detail != nullptr ? detail : "");
    }
  }
  const auto now = Clock::now();
  const auto late = std::ranges::find_if(entries_, [&](const Entry& entry) { return entry.deadline < now; });
  if (late == entries_.end()) return "";
  return fmt::format("timeout on the GPU: {}; a peer is stuck or slower than the timeout", late->what);
}

void NcclWatchdog::abort_all(const std::string& failure) {
  std::vector<ncclComm_t> comms;
  {
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    failed_ = true;
    comms.swap(comms_);
  }
  // Said here too: the host thread may be far from its next call.
  std::fprintf(stderr, "%s\n", failure.c_str());
  for (ncclComm_t comm : comms) static_cast<void>(ncclCommAbort(comm));
}

}  // namespace pptrain::comm
