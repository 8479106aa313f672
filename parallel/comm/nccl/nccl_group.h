// One NCCL communicator that never holds a thread for good.
//
// It is made non-blocking (ncclConfig_t::blocking = 0): NCCL's documentation requires it for aborts, and only
// so can the set-up be given up. Each call then returns at once, while a thread of NCCL does the work, and is
// followed by questions (ncclCommGetAsyncError) until the work is on the stream; nothing else may go on that
// stream before. A lock keeps the questions of the host's thread, those of the watchdog and the abort apart,
// as NCCL demands.
#pragma once

#include <nccl.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "parallel/comm/nccl/device_watch.h"

namespace pptrain::comm {

using WatchdogPtr = std::shared_ptr<DeviceWatchdog>;

// ncclSuccess and ncclInProgress: the call is done, or begun.
bool accepted(ncclResult_t result);
// Throws Error with NCCL's own explanation.
void check_nccl(ncclResult_t result, const char* call);

// Names a group that a new communicator is made for; the same on all ranks of it.
std::string new_nccl_id();

class NcclGroup final : public DeviceWatch::Group {
 public:
  struct Options {
    int job_rank = 0;  // this rank's in the job, for messages
    std::string name;  // "the NCCL group of ranks 0, 2"
    int device = 0;    // the CUDA device that it is set up on
    // For the set-up and for the end.
    std::chrono::milliseconds timeout{0};
    int max_ctas =
        0;  // thread blocks, one a multiprocessor, that a kernel of it takes at most; 0: as NCCL likes
    std::shared_ptr<void> blocks = {};  // goes with the group
  };

  // Set up on its device, which is current, when all `size` ranks have come. Throws WaitTimeout if they do
  // not come within the timeout, PeerFailure and Error as DeviceWatch::check, Error with NCCL's words if NCCL
  // fails.
  NcclGroup(WatchdogPtr watchdog, const std::string& id, int rank, int size, Options options);
  // Waits for the other ranks' ends, for the timeout at most. While an exception unwinds, it aborts what all
  // groups have on the device instead.
  ~NcclGroup() override;
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // Returns when what `body` asks of NCCL is on its stream: one call, or one group of calls. `call` names it.
  // Throws as the constructor does; then all groups are aborted.
  void enqueue(const std::string& call, std::chrono::milliseconds timeout,
               const std::function<ncclResult_t(ncclComm_t)>& body);

  std::optional<DeviceFailure> failure() override;
  void abort() noexcept override;

 private:
  DeviceWatch& watch() { return watchdog_->watch(); }
  ncclResult_t state();
  [[noreturn]] void fail(DeviceFailure failure);
  DeviceFailure failure_of(ncclResult_t state, const std::string& what) const;
  std::string named(const std::string& call) const;
  void wait_until_ready(const std::string& call, std::chrono::milliseconds timeout);
  void finalize() noexcept;
  void make_device_current() const noexcept;

  const WatchdogPtr watchdog_;
  const Options options_;
  const int unwinding_ = std::uncaught_exceptions();
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;  // null once it is aborted
};

}  // namespace pptrain::comm
