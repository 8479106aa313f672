#include "parallel/comm/nccl/nccl_transfers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/InferenceMode.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "parallel/comm/nccl/nccl_member.h"

namespace pptrain::comm {

namespace {

// Thread blocks of a link's kernel, one an SM: what a receive that was posted ahead holds while it waits (of
// 132 on an H100, of 108 on an A100). NCCL's own choice takes up to 32, of each of the links that wait. If a
// block moves 20 GB/s, two take 0.8 ms for the 32 MiB of 4096 tokens of 4096 bf16 values; the stage's
// forward, say eight blocks of 200M parameters, takes 13 TFLOP, 26 ms at 500 TFLOP/s, and goes on meanwhile.
// (Arithmetic, not measured.)
constexpr int link_ctas = 2;

}  // namespace

NcclLinks::~NcclLinks() {
  while (!links_.empty()) links_.erase(links_.begin());
}

// In the same order everywhere: of the ranks that have not come to the first pair not yet made, both come to
// it.
void NcclLinks::connect(std::span<const std::pair<int, int>> pairs) {
  for (const auto& [sender, receiver] : pairs) {
    const int top = std::max(sender, receiver);
    if (sender == receiver || std::min(sender, receiver) < 0 || top >= member_.size()) {
      throw Error(
          fmt::format("connect: {} -> {} is no pair of a group of {}", sender, receiver, member_.size()));
    }
    const bool mine = sender == member_.rank || receiver == member_.rank;
    if (mine && !links_.contains({sender, receiver})) make_link(sender, receiver);
  }
}

void NcclLinks::make_link(int sender, int receiver) {
  const std::string id = share_id(sender, receiver);
  Link link;
  link.stream = make_stream();
  const std::array<int, 2> pair{member_.job_ranks[sender], member_.job_ranks[receiver]};
  link.group = member_.make_group(id, sender == member_.rank ? 0 : 1, pair, link_ctas);
  links_.emplace(std::pair(sender, receiver), std::move(link));
  const at::Tensor token = at::empty({1}, at::TensorOptions().dtype(at::kByte).device(member_.device));
  start(token, sender, receiver)->wait([] { return "the first message of an NCCL link"; });
  member_.synchronize();
}

// The sender names the link.
std::string NcclLinks::share_id(int sender, int receiver) const {
  const auto what = [] { return "the set-up of an NCCL link"; };
  const at::Tensor bytes = at::empty({static_cast<int64_t>(sizeof(ncclUniqueId))}, at::kByte);
  if (sender == member_.rank) {
    const std::string id = new_nccl_id();
    std::memcpy(bytes.mutable_data_ptr(), id.data(), id.size());
    host_.isend(bytes, receiver)->wait(what);
  } else {
    host_.irecv(bytes, sender)->wait(what);
  }
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
}

const NcclLinks::Link& NcclLinks::link(int sender, int receiver) const {
  const auto found = links_.find({sender, receiver});
  if (found == links_.end()) {
    throw Error(
        fmt::format("ranks {} -> {} of a group of {} have no NCCL link: name the pair in connect() at set-up",
                    sender, receiver, member_.size()));
  }
  return found->second;
}

std::unique_ptr<Work> NcclLinks::start(at::Tensor tensor, int sender, int receiver) const {
  const bool sends = sender == member_.rank;
  member_.check_device(tensor, sends ? "isend" : "irecv");
  const Link& way = link(sender, receiver);
  const std::string what =
      sends ? fmt::format("its message to be taken by rank {}", member_.job_ranks[receiver])
            : fmt::format("a message from rank {}", member_.job_ranks[sender]);
  return member_.run_beside(way.stream.get(), what, {tensor}, [&] {
    const size_t bytes = tensor.nbytes();
    const cudaStream_t stream = way.stream.get();
    way.group->enqueue(what, member_.timeout, [&](ncclComm_t comm) {
      return sends ? ncclSend(tensor.const_data_ptr(), bytes, ncclUint8, 1, comm, stream)
                   : ncclRecv(tensor.mutable_data_ptr(), bytes, ncclUint8, 0, comm, stream);
    });
  });
}

NcclTransfers::NcclTransfers(const NcclMember& member, const std::string& id)
    : member_(member),
      stream_(make_stream()),
      group_(member.make_group(id, member.rank, member.job_ranks, /*max_ctas=*/0)) {
  warm_up();
}

std::unique_ptr<Work> NcclTransfers::run(const char* name, std::vector<at::Tensor> tensors,
                                         const std::function<void()>& body) const {
  for (const at::Tensor& tensor : tensors) member_.check_device(tensor, name);
  return member_.run_beside(stream_.get(), fmt::format("{} of {}", name, member_.name()), std::move(tensors),
                            body);
}

// What could throw comes before the group of calls: NCCL counts its begin and end.
void NcclTransfers::exchange(const PartOf& outgoing, const PartOf& incoming) const {
  struct Peer {
    int rank = 0;
    at::Tensor out, in;
  };
  std::vector<Peer> peers;
  for (int r = 0; r < member_.size(); ++r) {
    if (r != member_.rank) peers.push_back({r, outgoing(r), incoming(r)});
  }
  const cudaStream_t stream = stream_.get();
  group_->enqueue("an exchange of all ranks", member_.timeout, [&](ncclComm_t comm) {
    ncclResult_t result = ncclGroupStart();
    if (result != ncclSuccess) return result;
    for (const Peer& peer : peers) {
      if (peer.out.numel() > 0 && accepted(result)) {
        result = ncclSend(peer.out.const_data_ptr(), peer.out.nbytes(), ncclUint8, peer.rank, comm, stream);
      }
      if (peer.in.numel() > 0 && accepted(result)) {
        result = ncclRecv(peer.in.mutable_data_ptr(), peer.in.nbytes(), ncclUint8, peer.rank, comm, stream);
      }
    }
    const ncclResult_t end = ncclGroupEnd();
    return accepted(result) ? end : result;
  });
}

void NcclTransfers::all_gather(at::Tensor out, const at::Tensor& tensor) const {
  group_->enqueue("all_gather", member_.timeout, [&](ncclComm_t comm) {
    return ncclAllGather(tensor.const_data_ptr(), out.mutable_data_ptr(), tensor.nbytes(), ncclUint8, comm,
                         stream_.get());
  });
}

void NcclTransfers::broadcast(at::Tensor tensor, int root) const {
  group_->enqueue("broadcast", member_.timeout, [&](ncclComm_t comm) {
    return ncclBroadcast(tensor.const_data_ptr(), tensor.mutable_data_ptr(), tensor.nbytes(), ncclUint8, root,
                         comm, stream_.get());
  });
}

void NcclTransfers::warm_up() const {
  const c10::InferenceMode inference;
  const auto options = at::TensorOptions().dtype(at::kByte).device(member_.device);
  const auto sizes = warm_up_gathers(member_.size());
  const at::Tensor scratch = at::empty({member_.size() * sizes.back()}, options);
  const at::Tensor rows = at::empty({member_.size(), 1}, options);
  const at::Tensor tokens = at::empty_like(rows);
  const auto work = run("the first exchange", {scratch, rows, tokens}, [&] {
    exchange([&](int r) { return tokens.select(0, r); }, [&](int r) { return rows.select(0, r); });
    broadcast(rows, 0);
    for (const int64_t bytes : sizes) {
      const at::Tensor out = scratch.narrow(0, 0, member_.size() * bytes);
      all_gather(out, out.narrow(0, member_.rank * bytes, bytes));
    }
  });
  work->wait();
  member_.synchronize();
}

}  // namespace pptrain::comm
