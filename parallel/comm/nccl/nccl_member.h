// A rank as a member of one group: what the links and the collectives of an NcclCommunicator share.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/core/Device.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/nccl/gpu_ranks.h"
#include "parallel/comm/nccl/nccl_group.h"

namespace pptrain::comm {

// check_gpu_ranks() of the job's ranks, on all alike. Collective.
void check_ranks(Communicator& host, c10::Device device);

using CudaStream = std::shared_ptr<std::remove_pointer_t<cudaStream_t>>;

// A stream on the current device, of the highest priority, that waits for no other stream.
CudaStream make_stream();

using DeviceEvent = std::shared_ptr<at::cuda::CUDAEvent>;

// An event behind what `stream` holds now.
DeviceEvent record(c10::cuda::CUDAStream stream);

// The end of work that some thread puts on a side stream.
class SideEnd {
 public:
  // It is behind what the stream holds now.
  void reach(c10::cuda::CUDAStream stream);
  // The work was not put on the stream; all that follows throws this.
  void fail(std::exception_ptr error);

  // True once it is on the stream; waits so long.
  bool wait_for(std::chrono::milliseconds time);
  // Has the device passed it?
  bool passed() { return wait_for(std::chrono::milliseconds(0)) && event_.query(); }
  // Orders `stream` behind it. It is on its own stream.
  void block(c10::cuda::CUDAStream stream) { event_.block(stream); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  std::exception_ptr error_;
  at::cuda::CUDAEvent event_;  // no longer changed once it is reached
};

struct NcclMember {
  c10::Device device;
  WatchdogPtr watchdog = {};
  int rank = 0;                                 // of the group
  std::vector<int> job_ranks = {};              // of the group's ranks, their ranks in the job
  std::chrono::milliseconds set_up_timeout{0};  // also for ends
  std::chrono::milliseconds timeout{0};         // for what comes between
  int group_blocks = 0;                         // of a group's collectives
  ThreadBlocks blocks{};                        // of all groups of this rank; copies count together

  int size() const { return static_cast<int>(job_ranks.size()); }
  int job_rank() const { return job_ranks[static_cast<size_t>(rank)]; }
  std::string name() const;  // "ranks 0, 4"
  DeviceWatch& watch() const { return watchdog->watch(); }
  c10::cuda::CUDAStream current_stream() const { return c10::cuda::getCurrentCUDAStream(device.index()); }

  // An NCCL communicator of the ranks `of` of the job, of which this one is number `nccl_rank`.
  // max_ctas: NcclGroup::Options.
  std::unique_ptr<NcclGroup> make_group(const std::string& id, int nccl_rank, std::span<const int> of,
                                        int max_ctas) const;

  // Throws Error if the tensor is not contiguous or not on this rank's device.
  void check_device(const at::Tensor& tensor, const char* what) const;

  // Runs `body` with the stream `side` as the current one, after what the current stream holds now; `what`
  // names the work to the watch. The work keeps `tensors`.
  std::unique_ptr<Work> run_beside(cudaStream_t side, const std::string& what,
                                   std::vector<at::Tensor> tensors, const std::function<void()>& body) const;

  // The handle of work on the stream `side`, which begins behind `ready` on the current stream; it keeps
  // `tensors` as run_beside does. Another thread puts it there.
  std::unique_ptr<Work> follow(cudaStream_t side, const std::string& what, std::vector<at::Tensor> tensors,
                               const DeviceEvent& ready, std::shared_ptr<SideEnd> end) const;

  // Waits on the host for the current stream, while the watch looks after what it waits for.
  void synchronize() const;
};

}  // namespace pptrain::comm
