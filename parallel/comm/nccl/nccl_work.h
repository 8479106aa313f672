// The handle of what NCCL does on a stream beside the rank's own.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/nccl/nccl_group.h"

namespace pptrain::comm {

using NcclEvent = std::shared_ptr<at::cuda::CUDAEvent>;

// Behind what `stream` holds now.
NcclEvent record(c10::cuda::CUDAStream stream);

// What goes on until `finished`, on `tensors` (scratch included), whose memory is that of the stream `home`;
// `ticket` is the watch's.
class NcclWork final : public Work {
 public:
  NcclWork(WatchdogPtr watchdog, c10::cuda::CUDAStream home, NcclEvent finished, DeviceWatch::Ticket ticket,
           std::vector<at::Tensor> tensors);
  // The side stream may still use the tensors: then the watch holds them.
  ~NcclWork() override;
  NcclWork(const NcclWork&) = delete;
  NcclWork& operator=(const NcclWork&) = delete;

  bool done() override;
  // Orders the current stream behind the side stream. Where that is the tensors' home, their memory may go to
  // other uses on it from then on, and they are let go; on any other the watch holds them until they are
  // free.
  void wait(const std::function<std::string()>& what) override;
  // wait() blocks the current stream, never the host.
  bool wait_for(std::chrono::milliseconds /*time*/) override { return true; }

 private:
  void leave_tensors_to_watch();

  const WatchdogPtr watchdog_;
  const c10::cuda::CUDAStream home_;
  const NcclEvent finished_;
  const DeviceWatch::Ticket ticket_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace pptrain::comm
