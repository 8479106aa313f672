#include "parallel/comm/nccl/nccl_collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAGuard.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "parallel/comm/collectives.h"
#include "parallel/comm/operands.h"

namespace pptrain::comm {
namespace {

// Up to this size a sum gathers whole tensors: one exchange instead of two.
constexpr int64_t direct_bytes = 256 << 10;
// Scratch of a larger sum: at most about this much.
constexpr int64_t piece_bytes = 64 << 20;

}  // namespace

NcclCollectives::NcclCollectives(const NcclMember& member, const std::string& id)
    : member_(member),
      stream_(make_stream()),
      group_(member.make_group(id, member.rank, member.job_ranks, member.group_blocks)) {
  warm_up();
}

std::unique_ptr<Work> NcclCollectives::all_reduce_sum(at::Tensor tensor, const HostBlocks& blocks) const {
  const c10::cuda::CUDAGuard guard(member_.device);
  const int size = member_.size();
  const int64_t n = tensor.numel();
  if (static_cast<int64_t>(tensor.nbytes()) <= direct_bytes) {
    const at::Tensor others = at::empty({size, n}, tensor.options());
    return run("all_reduce_sum", {tensor, others}, [&] {
      move_to_all(others, tensor);
      sum_in_pairs(tensor, others, member_.rank);
    });
  }
  const int64_t piece =
      size * window_length(blocks.most_rows(), static_cast<int64_t>(tensor.element_size()), piece_bytes);
  const int64_t longest = (std::min(piece, n) + size - 1) / size;
  const at::Tensor scratch = at::empty({blocks.most_rows() * longest}, tensor.options());
  return run("all_reduce_sum", {tensor, scratch}, [&] {
    for (int64_t begin = 0; begin < n; begin += piece) {
      sum_piece(tensor.narrow(0, begin, std::min(piece, n - begin)), scratch, blocks);
    }
  });
}

// Reduce-scatter by exchange of chunks, then all-gather: each rank sends and receives 2 (size - 1) / size of
// the tensor.
void NcclCollectives::sum_piece(at::Tensor flat, at::Tensor scratch, const HostBlocks& blocks) const {
  const int size = member_.size();
  const int64_t n = flat.numel();
  const auto chunk = [&](int r) {
    const int64_t begin = n * r / size;
    return flat.narrow(0, begin, n * (r + 1) / size - begin);
  };
  sum_parts(BlockSum(blocks, member_.rank, chunk(member_.rank), chunk, scratch), blocks);
  gather_parts(BlockGather(blocks, member_.rank, chunk), blocks);
}

void NcclCollectives::sum_parts(BlockSum sum, const HostBlocks& blocks) const {
  move(sum.within(), blocks.block - 1);
  sum.add_within();
  move(sum.between(), member_.size());
  sum.add_between();
}

void NcclCollectives::gather_parts(const BlockGather& gather, const HostBlocks& blocks) const {
  move(gather.between, member_.size());
  move(gather.within, blocks.block - 1);
}

std::unique_ptr<Work> NcclCollectives::reduce_scatter_sum(at::Tensor out, const Parts& parts,
                                                          const HostBlocks& blocks) const {
  const c10::cuda::CUDAGuard guard(member_.device);
  const at::Tensor& tensor = parts.flat();
  const int64_t longest = parts.longest();
  const int64_t length = std::min(
      longest, window_length(blocks.most_rows(), static_cast<int64_t>(tensor.element_size()), piece_bytes));
  const at::Tensor scratch = at::empty({blocks.most_rows() * length}, tensor.options());
  return run("reduce_scatter_sum", {out, tensor, scratch}, [&] {
    copy_own_part(out, parts[member_.rank]);
    for (int64_t begin = 0; begin < longest; begin += length) {
      const auto window = [&](int r) { return window_of(parts[r], begin, length); };
      sum_parts(BlockSum(blocks, member_.rank, window_of(out, begin, length), window, scratch), blocks);
    }
  });
}

std::unique_ptr<Work> NcclCollectives::all_gather(at::Tensor out, at::Tensor tensor,
                                                  std::vector<int64_t> counts,
                                                  const HostBlocks& blocks) const {
  return run("all_gather", {out, tensor}, [&] {
    if (std::ranges::adjacent_find(counts, std::ranges::not_equal_to()) == counts.end()) {
      return move_to_all(out, tensor);
    }
    const Parts parts(out, counts);
    copy_own_part(parts[member_.rank], tensor);
    gather_parts(BlockGather(blocks, member_.rank, [&](int r) { return parts[r]; }), blocks);
  });
}

std::unique_ptr<Work> NcclCollectives::all_to_all(at::Tensor out, std::vector<int64_t> from,
                                                  at::Tensor tensor, std::vector<int64_t> to) const {
  return run("all_to_all", {out, tensor}, [&] {
    const Parts incoming(out, from);
    const Parts outgoing(tensor, to);
    copy_own_part(incoming[member_.rank], outgoing[member_.rank]);
    move_parts([&](int r) { return outgoing[r]; }, [&](int r) { return incoming[r]; });
  });
}

std::unique_ptr<Work> NcclCollectives::broadcast(at::Tensor tensor, int root) const {
  return run("broadcast", {tensor}, [&] { move_from(tensor, root); });
}

// --- what NCCL does ---

std::unique_ptr<Work> NcclCollectives::run(const char* name, std::vector<at::Tensor> tensors,
                                           const std::function<void()>& body) const {
  for (const at::Tensor& tensor : tensors) member_.check_device(tensor, name);
  return member_.run_beside(stream_.get(), fmt::format("{} of {}", name, member_.name()), std::move(tensors),
                            body);
}

void NcclCollectives::move_parts(const PartOf& outgoing, const PartOf& incoming) const {
  move(exchange_with_all(member_.rank, member_.size(), outgoing, incoming), member_.size());
}

// Whatever could throw runs before a group of calls: NCCL counts its begin and end.
void NcclCollectives::move(const Parcels& parcels, int several) const {
  const cudaStream_t stream = stream_.get();
  for (const Parcels& group : groups_of_calls(parcels, member_.rank, member_.size(), several)) {
    group_->enqueue("an exchange of several ranks", member_.timeout, [&](ncclComm_t comm) {
      ncclResult_t result = ncclGroupStart();
      if (result != ncclSuccess) return result;
      for (const auto& [tensor, peer] : group.out) {
        if (accepted(result))
          result = ncclSend(tensor.const_data_ptr(), tensor.nbytes(), ncclUint8, peer, comm, stream);
      }
      for (const auto& [tensor, peer] : group.in) {
        if (accepted(result))
          result = ncclRecv(tensor.mutable_data_ptr(), tensor.nbytes(), ncclUint8, peer, comm, stream);
      }
      const ncclResult_t end = ncclGroupEnd();
      return accepted(result) ? end : result;
    });
  }
}

void NcclCollectives::move_to_all(at::Tensor out, const at::Tensor& tensor) const {
  group_->enqueue("all_gather", member_.timeout, [&](ncclComm_t comm) {
    return ncclAllGather(tensor.const_data_ptr(), out.mutable_data_ptr(), tensor.nbytes(), ncclUint8, comm,
                         stream_.get());
  });
}

void NcclCollectives::move_from(at::Tensor tensor, int root) const {
  group_->enqueue("broadcast", member_.timeout, [&](ncclComm_t comm) {
    return ncclBroadcast(tensor.const_data_ptr(), tensor.mutable_data_ptr(), tensor.nbytes(), ncclUint8, root,
                         comm, stream_.get());
  });
}

void NcclCollectives::warm_up() const {
  const c10::InferenceMode inference;
  const auto options = at::TensorOptions().dtype(at::kByte).device(member_.device);
  const auto sizes = warm_up_gathers(member_.size());
  const at::Tensor scratch = at::empty({member_.size() * sizes.back()}, options);
  const at::Tensor received = at::empty({member_.size(), 1}, options);
  const at::Tensor tokens = at::empty_like(received);
  const auto work = run("the first exchange", {scratch, received, tokens}, [&] {
    move_parts([&](int r) { return tokens.select(0, r); }, [&](int r) { return received.select(0, r); });
    move_from(received, 0);
    for (const int64_t bytes : sizes) {
      const at::Tensor out = scratch.narrow(0, 0, member_.size() * bytes);
      move_to_all(out, out.narrow(0, member_.rank * bytes, bytes));
    }
  });
  work->wait();
  member_.synchronize();
}

}  // namespace pptrain::comm
