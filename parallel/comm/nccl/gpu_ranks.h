// What GPUs of one job must have in common, and how they exchange with each other. Without CUDA, so that it
// is tested without GPUs.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "parallel/comm/block_exchange.h"

namespace pptrain::comm {

// What a rank tells of itself and its GPU. Versions as NCCL numbers them: 22809 is 2.28.9.
struct GpuRank {
  std::array<char, 16> uuid{};
  std::array<char, 64> model{};  // "NVIDIA H100 80GB HBM3", ends with a zero
  int processors = 0;            // streaming multiprocessors
  int nccl = 0;                  // that runs
  int nccl_built_with = 0;
  bool may_share = false;  // PPTRAIN_NCCL_SHARED_GPU=1
  bool blocking = false;   // NCCL_COMM_BLOCKING=1
};

std::string nccl_version_text(int version);  // "2.28.9"

// By rank. Throws UsageError if two ranks have one GPU, if a rank runs another NCCL than rank 0 or an older
// one than it was built with, or if its environment takes away what pptrain asks of NCCL. Returns a warning
// if GPUs are of several kinds, else "": libraries then choose different kernels, so bits depend on the
// layout.
std::string check_gpu_ranks(std::span<const GpuRank> ranks);

// What moves the parcels of rank `me`, as groups of calls that are not empty. All ranks come to the groups in
// which they exchange in one order. several: so many peers at most have more than one parcel each way, the
// same on all ranks. So no group has more than 256 calls: with more, NCCL may divide the groups of two ranks
// differently, and hang (pytorch/pytorch#174288).
std::vector<Parcels> groups_of_calls(const Parcels& parcels, int me, int ranks, int several);

// The thread blocks, one a streaming multiprocessor, of all communicators of a rank. Communicators whose
// kernels wait for each other must fit on the GPU together, or none of them ends: at most 96, of 132 of an
// H100 and 108 of an A100.
class ThreadBlocks {
 public:
  static constexpr int most = 96;

  // One more communicator, `name` for messages, which has its blocks until the result goes. Throws UsageError
  // if all take too many.
  std::shared_ptr<void> take(int blocks, const std::string& name) const;
  int taken() const { return *taken_; }

 private:
  std::shared_ptr<int> taken_ = std::make_shared<int>(0);
};

}  // namespace pptrain::comm
