// Keeps NCCL from hanging: a thread that looks at what is under way on the GPU, and aborts NCCL when a peer
// has failed or a wait is too long. The kernels then end, the host thread that waits for them comes back, and
// its next call throws.
//
// It also keeps tensors alive that a side stream still uses after their Work is gone. (Recording the stream
// with the caching allocator would do that too, but then no tensor may outlive the stream.)
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAEvent.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace pptrain::comm {

using NcclEvent = std::shared_ptr<at::cuda::CUDAEvent>;

// Throws Error with NCCL's own explanation.
void check_nccl(ncclResult_t result, const char* call);

class NcclWatchdog {
 public:
  using Clock = std::chrono::steady_clock;

  explicit NcclWatchdog(c10::DeviceIndex device);
  ~NcclWatchdog();
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  void add(ncclComm_t comm);
  // Destroys the communicator, unless it was aborted.
  void remove(ncclComm_t comm, bool in_order);

  // `event` is to be reached by `deadline`; `what` is for the error. Keeps `tensors` until then.
  void watch(NcclEvent event, std::vector<at::Tensor> tensors, Clock::time_point deadline, std::string what);
  // Forgets what has been reached, and throws Error once the watchdog has aborted NCCL.
  void check();

 private:
  struct Entry {
    NcclEvent event;
    std::vector<at::Tensor> tensors;
    Clock::time_point deadline;
    std::string what;
  };

  void run();
  void reap(bool all);
  std::string find_failure();
  void abort_all(const std::string& failure);

  const c10::DeviceIndex device_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::list<Entry> entries_;
  std::vector<ncclComm_t> comms_;
  std::string failure_;
  std::atomic<bool> failed_ = false;
  bool stop_ = false;
  std::jthread thread_;
};

}  // namespace pptrain::comm
