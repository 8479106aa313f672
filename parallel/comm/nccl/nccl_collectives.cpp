#include "parallel/comm/nccl/nccl_collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAGuard.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "parallel/comm/collectives.h"
#include "parallel/comm/operands.h"

namespace pptrain::comm {
namespace {

// Up to this size a sum gathers whole tensors: one exchange instead of two.
constexpr int64_t direct_bytes = 256 << 10;
// Scratch of a larger sum: at most about this much.
constexpr int64_t piece_bytes = 64 << 20;

// A row for each rank, of the first elements of `scratch`.
at::Tensor rows(const at::Tensor& scratch, int size, int64_t length) {
  return scratch.narrow(0, 0, size * length).view({size, length});
}

}  // namespace

NcclCollectives::NcclCollectives(const NcclMember& member, const std::string& id)
    : member_(member),
      stream_(make_stream()),
      group_(member.make_group(id, member.rank, member.job_ranks, member.group_blocks)) {
  warm_up();
}

std::unique_ptr<Work> NcclCollectives::all_reduce_sum(at::Tensor tensor) const {
  const c10::cuda::CUDAGuard guard(member_.device);
  const int size = member_.size();
  const int64_t n = tensor.numel();
  if (static_cast<int64_t>(tensor.nbytes()) <= direct_bytes) {
    const at::Tensor others = at::empty({size, n}, tensor.options());
    return run("all_reduce_sum", {tensor, others}, [&] {
      move_to_all(others, tensor);
      sum_in_rank_order(tensor, others, member_.rank, size);
    });
  }
  const int64_t piece = std::max<int64_t>(piece_bytes / static_cast<int64_t>(tensor.element_size()), size);
  const at::Tensor scratch = at::empty({(std::min(piece, n) + size - 1) / size * size}, tensor.options());
  return run("all_reduce_sum", {tensor, scratch}, [&] {
    for (int64_t begin = 0; begin < n; begin += piece) {
      sum_piece(tensor.narrow(0, begin, std::min(piece, n - begin)), scratch);
    }
  });
}

// Reduce-scatter by exchange of chunks, then all-gather: each rank sends and receives 2 (size - 1) / size of
// the tensor.
void NcclCollectives::sum_piece(at::Tensor flat, at::Tensor scratch) const {
  const int size = member_.size();
  const int64_t n = flat.numel();
  const auto chunk = [&](int r) {
    const int64_t begin = n * r / size;
    return flat.narrow(0, begin, n * (r + 1) / size - begin);
  };
  const at::Tensor own = chunk(member_.rank);
  const at::Tensor others = rows(scratch, size, own.numel());
  move_parts(chunk, [&](int r) { return others.select(0, r); });
  sum_in_rank_order(own, others, member_.rank, size);
  move_parts([&](int) { return own; }, chunk);
}

std::unique_ptr<Work> NcclCollectives::reduce_scatter_sum(at::Tensor out, at::Tensor tensor,
                                                          std::vector<int64_t> counts) const {
  const c10::cuda::CUDAGuard guard(member_.device);
  const int size = member_.size();
  const int64_t mine = counts[static_cast<size_t>(member_.rank)];
  const int64_t longest = *std::ranges::max_element(counts);
  const int64_t length =
      window_length(counts.size(), static_cast<int64_t>(tensor.element_size()), piece_bytes);
  const at::Tensor scratch = at::empty({size * std::min(length, mine)}, tensor.options());
  return run("reduce_scatter_sum", {out, tensor, scratch}, [&] {
    const Parts parts(tensor, counts);
    const Parts outs(out, std::span(&mine, 1));
    copy_own_part(out, parts[member_.rank]);
    for (int64_t begin = 0; begin < longest; begin += length) {
      const at::Tensor own = outs.window(0, begin, length);
      const at::Tensor others = rows(scratch, size, own.numel());
      move_parts([&](int r) { return parts.window(r, begin, length); },
                 [&](int r) { return others.select(0, r); });
      if (own.numel() > 0) sum_in_rank_order(own, others, member_.rank, size);
    }
  });
}

std::unique_ptr<Work> NcclCollectives::all_gather(at::Tensor out, at::Tensor tensor,
                                                  std::vector<int64_t> counts) const {
  return run("all_gather", {out, tensor}, [&] {
    if (std::ranges::adjacent_find(counts, std::ranges::not_equal_to()) == counts.end()) {
      return move_to_all(out, tensor);
    }
    const Parts parts(out, counts);
    copy_own_part(parts[member_.rank], tensor);
    move_parts([&](int) { return tensor; }, [&](int r) { return parts[r]; });
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

// Whatever could throw runs before a group of calls: NCCL counts its begin and end.
void NcclCollectives::move_parts(const PartOf& outgoing, const PartOf& incoming) const {
  struct Peers {  // at one distance
    int to = 0, from = 0;
    at::Tensor out, in;
  };
  const int size = member_.size();
  const cudaStream_t stream = stream_.get();
  for (const std::vector<int>& distances : exchange_rounds(size)) {
    std::vector<Peers> round;
    for (const int distance : distances) {
      const int to = (member_.rank + distance) % size, from = (member_.rank + size - distance) % size;
      round.push_back({to, from, outgoing(to), incoming(from)});
    }
    group_->enqueue("an exchange of all ranks", member_.timeout, [&](ncclComm_t comm) {
      ncclResult_t result = ncclGroupStart();
      if (result != ncclSuccess) return result;
      for (const Peers& peers : round) {
        if (peers.out.numel() > 0 && accepted(result))
          result =
              ncclSend(peers.out.const_data_ptr(), peers.out.nbytes(), ncclUint8, peers.to, comm, stream);
        if (peers.in.numel() > 0 && accepted(result))
          result =
              ncclRecv(peers.in.mutable_data_ptr(), peers.in.nbytes(), ncclUint8, peers.from, comm, stream);
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
