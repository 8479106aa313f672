#include "parallel/comm/nccl/nccl_group.h"

#include <cuda_runtime_api.h>
#include <spdlog/fmt/fmt.h>

#include <cstring>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "parallel/comm/operands.h"
#include "parallel/comm/wait_timeout.h"

namespace pptrain::comm {
namespace {

std::string explain(ncclResult_t result, ncclComm_t comm) {
  const char* detail = ncclGetLastError(comm);
  const bool has_detail = detail != nullptr && *detail != '\0';
  return fmt::format("{}{}{}; NCCL_DEBUG=INFO in the environment shows more", ncclGetErrorString(result),
                     has_detail ? ": " : "", has_detail ? detail : "");
}

// Some tens of microseconds pass until a call's work is on its stream; at set-up it is seconds.
void pause(int round) {
  constexpr int yields = 1000;
  if (round < yields) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

}  // namespace

bool accepted(ncclResult_t result) {
  return result == ncclSuccess || result == ncclInProgress;
}

void check_nccl(ncclResult_t result, const char* call) {
  if (!accepted(result)) throw Error(fmt::format("{} failed: {}", call, explain(result, nullptr)));
}

std::string new_nccl_id() {
  ncclUniqueId unique{};
  check_nccl(ncclGetUniqueId(&unique), "ncclGetUniqueId");
  return {reinterpret_cast<const char*>(&unique), sizeof(unique)};
}

NcclGroup::NcclGroup(WatchdogPtr watchdog, const std::string& id, int rank, int size, Options options)
    : watchdog_(std::move(watchdog)), options_(std::move(options)) {
  ncclUniqueId unique{};
  if (id.size() != sizeof(unique)) throw Error("an NCCL id of the wrong size came from another rank");
  std::memcpy(&unique, id.data(), sizeof(unique));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (options_.max_ctas > 0) {
    config.minCTAs = 1;
    config.maxCTAs = options_.max_ctas;
  }
  watch().add(*this);
  try {
    const std::string call = "the set-up";
    ncclResult_t result = ncclSuccess;
    {
      const std::lock_guard lock(mutex_);
      result = ncclCommInitRankConfig(&comm_, size, unique, rank, &config);
    }
    if (!accepted(result)) fail(failure_of(result, named(call)));
    wait_until_ready(call, options_.timeout);
  } catch (...) {
    watch().remove(*this);
    abort();
    throw;
  }
}

NcclGroup::~NcclGroup() {
  if (std::uncaught_exceptions() > unwinding_) {
    watch().fail({DeviceFailure::Kind::fault,
                  fmt::format("rank {} has given up its communication on the GPU", options_.job_rank)});
  } else {
    finalize();
  }
  watch().remove(*this);
  if (comm_ == nullptr) return;
  make_device_current();
  // ncclCommDestroy of a communicator with an error gives up half-way, and leaves the thread inside a group
  // of calls that never ends (2.28.9, init.cc).
  static_cast<void>(state() == ncclSuccess ? ncclCommDestroy(comm_) : ncclCommAbort(comm_));
}

// If it fails or lasts too long, the watch has aborted all groups, this one too.
void NcclGroup::finalize() noexcept {
  try {
    enqueue("the end", options_.timeout, [](ncclComm_t comm) { return ncclCommFinalize(comm); });
  } catch (const std::exception& error) {
    watch().fail({DeviceFailure::Kind::fault, error.what()});
  }
}

void NcclGroup::enqueue(const std::string& call, std::chrono::milliseconds timeout,
                        const std::function<ncclResult_t(ncclComm_t)>& body) {
  watch().throw_if_failed();
  ncclResult_t result = ncclSuccess;
  {
    const std::lock_guard lock(mutex_);
    if (comm_ != nullptr) result = body(comm_);
  }
  if (!accepted(result)) fail(failure_of(result, named(call)));
  wait_until_ready(call, timeout);
}

// The first failure is thrown, which may be another one.
void NcclGroup::fail(DeviceFailure failure) {
  watch().fail(std::move(failure));
  watch().throw_if_failed();
  throw Error("NCCL has failed");  // not reached: the watch has a failure
}

// ncclInvalidUsage for a communicator that is aborted.
ncclResult_t NcclGroup::state() {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return ncclInvalidUsage;
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = ncclCommGetAsyncError(comm_, &state);
  return result == ncclSuccess ? state : result;
}

void NcclGroup::wait_until_ready(const std::string& call, std::chrono::milliseconds timeout) {
  PatientDeadline deadline(timeout);
  for (int round = 0;; ++round) {
    const ncclResult_t now = state();
    if (now == ncclSuccess) return;
    watch().throw_if_failed();  // which is why it may be aborted
    if (now != ncclInProgress) fail(failure_of(now, named(call)));
    if (deadline.passed()) {
      fail({DeviceFailure::Kind::timeout, timeout_message(options_.job_rank, timeout, named(call), "")});
    }
    pause(round);
  }
}

std::optional<DeviceFailure> NcclGroup::failure() {
  {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return std::nullopt;
  }
  const ncclResult_t now = state();
  return accepted(now) ? std::nullopt : std::optional(failure_of(now, options_.name));
}

DeviceFailure NcclGroup::failure_of(ncclResult_t state, const std::string& what) const {
  const bool peer = state == ncclRemoteError;
  return {peer ? DeviceFailure::Kind::peer : DeviceFailure::Kind::fault,
          fmt::format("rank {}, {}: {}{}", options_.job_rank, what, peer ? "NCCL lost a peer: " : "",
                      explain(state, nullptr))};
}

// "all_gather (the NCCL group of ranks 0, 2)"
std::string NcclGroup::named(const std::string& call) const {
  return fmt::format("{} ({})", call, options_.name);
}

void NcclGroup::abort() noexcept {
  ncclComm_t comm = nullptr;
  {
    const std::lock_guard lock(mutex_);
    comm = std::exchange(comm_, nullptr);
  }
  if (comm == nullptr) return;
  make_device_current();
  // Without the lock: it waits for the kernels.
  static_cast<void>(ncclCommAbort(comm));
}

// For destroy and abort: when they are done, NCCL puts back the device that it has found (2.28.9, group.cc),
// and putting back one that this process has not used would set it up.
void NcclGroup::make_device_current() const noexcept {
  static_cast<void>(cudaSetDevice(options_.device));
}

}  // namespace pptrain::comm
