#include "parallel/comm/nccl/nccl_links.h"

#include <ATen/ops/empty.h>
#include <nccl.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/base/error.h"
#include "core/base/process.h"
#include "parallel/comm/host_values.h"
#include "parallel/comm/nccl/nccl_group.h"
#include "parallel/comm/operands.h"

namespace pptrain::comm {
namespace {

// A communicator of the two ranks; the sender is its rank 0.
class NcclLink final : public DeviceLink {
 public:
  // A message goes over it at once, which makes all its connections: NCCL connects a pair at its first
  // message, whatever its size, on all the channels that a larger one would take (NCCL 2.28.9, enqueue.cc,
  // p2pTaskAppend).
  NcclLink(const NcclMember& member, Communicator& host, int sender, int receiver, int blocks)
      : member_(member), sends_(sender == member.rank) {
    const std::string id = share_id(host, sends_ ? receiver : sender);
    const std::array<int, 2> pair{member.job_ranks[static_cast<size_t>(sender)],
                                  member.job_ranks[static_cast<size_t>(receiver)]};
    group_ = member.make_group(id, sends_ ? 0 : 1, pair, blocks);
    const at::Tensor token = at::empty({1}, at::TensorOptions().dtype(at::kByte).device(member.device));
    start(token, "the first message")->wait([] { return "the first message of an NCCL link"; });
    member.synchronize();
  }

  std::unique_ptr<Work> start(at::Tensor tensor, const std::string& what) override {
    return member_.run_beside(stream_.get(), what, {tensor}, [&] {
      group_->enqueue(what, member_.timeout, [&](ncclComm_t comm) {
        return sends_
                   ? ncclSend(tensor.const_data_ptr(), tensor.nbytes(), ncclUint8, 1, comm, stream_.get())
                   : ncclRecv(tensor.mutable_data_ptr(), tensor.nbytes(), ncclUint8, 0, comm, stream_.get());
      });
    });
  }

 private:
  // The sender names the link.
  std::string share_id(Communicator& host, int other) const {
    const auto what = [] { return "the set-up of an NCCL link"; };
    const at::Tensor bytes = at::empty({static_cast<int64_t>(sizeof(ncclUniqueId))}, at::kByte);
    if (sends_) {
      const std::string id = new_nccl_id();
      std::memcpy(bytes.mutable_data_ptr(), id.data(), id.size());
      host.isend(bytes, other)->wait(what);
    } else {
      host.irecv(bytes, other)->wait(what);
    }
    return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
  }

  const NcclMember& member_;
  const bool sends_;
  const CudaStream stream_ = make_stream();  // goes last
  std::unique_ptr<NcclGroup> group_;
};

}  // namespace

void DeviceLinks::connect(std::span<const std::pair<int, int>> pairs, int blocks) {
  if (hosts_.empty()) hosts_ = host_numbers(host_, boot_id());
  for (const auto& pair : pairs) {
    const auto [sender, receiver] = pair;
    const int top = std::max(sender, receiver);
    if (sender == receiver || std::min(sender, receiver) < 0 || top >= member_.size()) {
      throw Error(
          fmt::format("connect: {} -> {} is no pair of a group of {}", sender, receiver, member_.size()));
    }
    const bool mine = sender == member_.rank || receiver == member_.rank;
    if (!mine || links_.contains(pair)) continue;
    std::unique_ptr<DeviceLink> link;
    if (hosts_[static_cast<size_t>(sender)] == hosts_[static_cast<size_t>(receiver)])
      link = make_ipc_link(member_, host_, sender, receiver);
    if (!link) link = std::make_unique<NcclLink>(member_, host_, sender, receiver, blocks);
    links_.emplace(pair, std::move(link));
  }
}

std::unique_ptr<Work> DeviceLinks::start(at::Tensor tensor, int sender, int receiver) const {
  const bool sends = sender == member_.rank;
  member_.check_device(tensor, sends ? "isend" : "irecv");
  const auto link = links_.find({sender, receiver});
  if (link == links_.end()) {
    throw Error(fmt::format(
        "ranks {} -> {} of a group of {} have no link between GPUs: name the pair in connect() at set-up",
        sender, receiver, member_.size()));
  }
  const int other = sends ? receiver : sender;
  return link->second->start(std::move(tensor),
                             describe_message(sends, member_.job_ranks[static_cast<size_t>(other)]));
}

}  // namespace pptrain::comm
