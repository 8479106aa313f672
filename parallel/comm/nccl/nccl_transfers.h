// What NCCL itself does for the collectives of a group: it moves bytes, all on the group's one stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/nccl/nccl_group.h"
#include "parallel/comm/nccl/nccl_member.h"

namespace pptrain::comm {

// Point-to-point traffic: each direction between two ranks has an NCCL communicator and a stream of its own,
// so that no other traffic can stand in its way.
class NcclLinks {
 public:
  // `member` and `host`, which carries the set-up's messages, must outlive it.
  NcclLinks(const NcclMember& member, Communicator& host) : member_(member), host_(host) {}
  // The end of a link may wait for the other rank's: so in the same order everywhere.
  ~NcclLinks();
  NcclLinks(const NcclLinks&) = delete;
  NcclLinks& operator=(const NcclLinks&) = delete;

  // As Communicator::connect, on the current device. A message goes over each new link at once, which makes
  // all its connections: NCCL connects a pair at its first message, whatever its size, on all the channels
  // that a larger one would take (NCCL 2.28.9, enqueue.cc, p2pTaskAppend).
  void connect(std::span<const std::pair<int, int>> pairs);

  // Moves the tensor from `sender` to `receiver`, one of which this rank is. Throws Error where the pair was
  // not connected or the tensor lies elsewhere.
  std::unique_ptr<Work> start(at::Tensor tensor, int sender, int receiver) const;

 private:
  // The sender is rank 0 of the two.
  struct Link {
    CudaStream stream;  // goes last
    std::unique_ptr<NcclGroup> group;
  };

  void make_link(int sender, int receiver);
  std::string share_id(int sender, int receiver) const;
  const Link& link(int sender, int receiver) const;

  const NcclMember& member_;
  Communicator& host_;
  std::map<std::pair<int, int>, Link> links_;
};

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
