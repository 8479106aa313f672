#include "parallel/comm/nccl/nccl_transfers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/InferenceMode.h>
#include <spdlog/fmt/fmt.h>

#include <utility>

#include "parallel/comm/nccl/nccl_warm_up.h"

namespace pptrain::comm {

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
