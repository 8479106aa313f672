// What NCCL itself does for the collectives of a group: it moves bytes, all on the group's one stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/nccl/nccl_group.h"
#include "parallel/comm/nccl/nccl_member.h"

namespace pptrain::comm {

class NcclTransfers {
 public:
  // Collective over the group, which `id` names (new_nccl_id), on the current device. All connections are
  // made (nccl_warm_up.h says which NCCL makes when). `member` must outlive it.
  NcclTransfers(const NcclMember& member, const std::string& id);

  // Runs `body`, which calls what follows, behind what the current stream holds now. All such works of a
  // group go in the order in which they are started, which is the same on all ranks. `name`, "all_gather",
  // for messages; the work keeps `tensors`.
  std::unique_ptr<Work> run(const char* name, std::vector<at::Tensor> tensors,
                            const std::function<void()>& body) const;

  // --- in a body; the tensors are contiguous ---
  using PartOf = std::function<at::Tensor(int rank)>;
  // outgoing(r), incoming(r): what goes to and comes from rank r; empty tensors do not travel.
  void exchange(const PartOf& outgoing, const PartOf& incoming) const;
  // out: one part of the size of `tensor` for each rank; `tensor` may be this rank's.
  void all_gather(at::Tensor out, const at::Tensor& tensor) const;
  void broadcast(at::Tensor tensor, int root) const;

 private:
  void warm_up() const;

  const NcclMember& member_;
  const CudaStream stream_;  // goes after the group
  const std::unique_ptr<NcclGroup> group_;
};

}  // namespace pptrain::comm
