// In place of nccl_communicator.cpp in a build without CUDA.
#include "core/base/error.h"
#include "parallel/comm/nccl/nccl_communicator.h"

namespace pptrain::comm {

std::string nccl_version() {
  return "";
}

std::unique_ptr<Communicator> make_nccl(Communicator& /*host*/, c10::Device device,
                                        const NcclOptions& /*options*/) {
  throw UsageError("this program was built without CUDA, so ranks cannot exchange tensors on " +
                   device.str() + ": build where nvcc is on PATH, or use run.device = \"cpu\"");
}

}  // namespace pptrain::comm
