// The collectives of a group: bytes move with NCCL, sums are taken here in rank order. Tensors are CUDA
// tensors, flat, of sizes that fit, for groups of two ranks or more (Communicator's start_* functions).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/nccl/nccl_member.h"
#include "parallel/comm/nccl/nccl_transfers.h"

namespace pptrain::comm {

class NcclCollectives {
 public:
  // As NcclTransfers.
  NcclCollectives(const NcclMember& member, const std::string& id)
      : member_(member), transfers_(member, id) {}

  // Scratch is allocated on the caller's stream and kept by the work, as the other tensors are.
  std::unique_ptr<Work> all_reduce_sum(at::Tensor tensor) const;
  std::unique_ptr<Work> reduce_scatter_sum(at::Tensor out, at::Tensor tensor,
                                           std::vector<int64_t> counts) const;
  std::unique_ptr<Work> all_gather(at::Tensor out, at::Tensor tensor, std::vector<int64_t> counts) const;
  std::unique_ptr<Work> all_to_all(at::Tensor out, std::vector<int64_t> from, at::Tensor tensor,
                                   std::vector<int64_t> to) const;
  std::unique_ptr<Work> broadcast(at::Tensor tensor, int root) const;

 private:
  void sum_gathered(at::Tensor tensor, at::Tensor others) const;
  void sum_piece(at::Tensor flat, at::Tensor scratch) const;

  const NcclMember& member_;
  const NcclTransfers transfers_;
};

}  // namespace pptrain::comm
