// NCCL for CUDA tensors; no_nccl.cpp takes nccl_communicator.cpp's place in a build without CUDA.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "parallel/comm/communicator.h"

namespace pptrain::comm {

struct NcclOptions {
  // For set-ups, and for waits until set_timeout() says otherwise: the longest time an operation may run once
  // the GPU has reached it.
  std::chrono::milliseconds timeout{0};
  // Thread blocks of a group's collectives (parallel/mesh/gpu_blocks.h).
  int group_blocks = 0;
  // What the GPU is in, in the schedule's words, "" if it is not known; for the message of a timeout. The
  // watching thread calls it five times a second; may be empty.
  std::function<std::string()> device_place = {};
};

// "2.28.9"; "" in a build without CUDA.
std::string nccl_version();

// The ranks of `host`, the job's, each with its own GPU `device`, for CUDA tensors; CPU tensors, host values,
// abort and timeouts go through `host`, which must outlive the result. Collective over `host`. Links for
// isend/irecv are made by connect(), a group's NCCL communicator at its first collective of CUDA tensors. The
// result outlives what is split off it.
//
// No wait on the device is for ever: a thread (DeviceWatch) ends what NCCL has on the GPU when an operation
// is late, when NCCL has lost a peer, and when `host` knows of a failure. So a host thread that waits for the
// GPU, in cudaStreamSynchronize or Tensor::item, comes back, with values that mean nothing. Its next call of
// the communicator, host() included, throws WaitTimeout, PeerFailure or Error. If an endless kernel keeps a
// process from coming back, the process ends a minute later, with the failure's words.
//
// Throws UsageError as check_gpu_ranks() does and if the build has no CUDA, WaitTimeout if ranks do not come
// to the set-up in time, and Error with NCCL's words if NCCL fails.
std::unique_ptr<Communicator> make_nccl(Communicator& host, c10::Device device, const NcclOptions& options);

}  // namespace pptrain::comm
