// NCCL for CUDA tensors; no_nccl.cpp takes nccl_communicator.cpp's place in a build without CUDA.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "parallel/comm/communicator.h"

namespace pptrain::comm {

// "2.28.9"; "" in a build without CUDA.
std::string nccl_version();

// The ranks of `host`, each with its own GPU `device`, for CUDA tensors; CPU tensors, host values, abort and
// timeouts go through `host`, which must outlive the result. Collective over `host`. Links for isend/irecv
// are made by connect().
//
// Throws UsageError where two ranks share a GPU or the build has no CUDA, and Error with NCCL's words where
// NCCL fails.
std::unique_ptr<Communicator> make_nccl(Communicator& host, c10::Device device);

}  // namespace pptrain::comm
