// Point-to-point traffic between GPUs: each direction between two ranks has a link with a stream of its own,
// so that no other traffic can stand in its way.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/nccl/nccl_member.h"

namespace pptrain::comm {

class DeviceLink {
 public:
  virtual ~DeviceLink() = default;
  // Moves the next message: from `tensor` on the sender, into it on the receiver. `what` describes it.
  virtual std::unique_ptr<Work> start(at::Tensor tensor, const std::string& what) = 0;
};

// Between processes of one host through memory of the receiver's GPU, by copies (ipc_link.h). Test messages
// have gone over it. Null, on both ranks, if their GPUs or containers do not allow it, or if one of them has
// PPTRAIN_GPU_LINKS=nccl in its environment; the log says why. Called by both; `host` carries the set-up.
std::unique_ptr<DeviceLink> make_ipc_link(const NcclMember& member, Communicator& host, int sender,
                                          int receiver);

class DeviceLinks {
 public:
  // `member` and `host`, which carries the set-up's messages, must outlive it.
  DeviceLinks(const NcclMember& member, Communicator& host) : member_(member), host_(host) {}
  // The end of a link may wait for the other rank's: so all ranks end their links in the same order.
  ~DeviceLinks() {
    while (!links_.empty()) links_.erase(links_.begin());
  }
  DeviceLinks(const DeviceLinks&) = delete;
  DeviceLinks& operator=(const DeviceLinks&) = delete;

  // As Communicator::connect, on the current device. Takes NCCL where make_ipc_link() gives nothing.
  // The order is the same everywhere: both ranks of the first pair that is not made yet come to it.
  void connect(std::span<const std::pair<int, int>> pairs, int blocks);

  // Moves the tensor from `sender` to `receiver`; this rank is one of them. Throws Error if the pair was not
  // connected or the tensor is on another device.
  std::unique_ptr<Work> start(at::Tensor tensor, int sender, int receiver) const;

 private:
  const NcclMember& member_;
  Communicator& host_;
  std::vector<int> hosts_;  // [rank] The number of its host, from the first connect() on
  std::map<std::pair<int, int>, std::unique_ptr<DeviceLink>> links_;
};

}  // namespace pptrain::comm
