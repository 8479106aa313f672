#include "parallel/comm/nccl/nccl_collectives.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "parallel/comm/collectives.h"
#include "parallel/comm/operands.h"
#include "parallel/comm/sum_queue.h"

namespace pptrain::comm {
namespace {

// Up to here a sum gathers whole tensors: one exchange instead of two.
constexpr int64_t direct_bytes = 256 << 10;
// Scratch of a larger sum: at most about this much.
constexpr int64_t piece_bytes = 64 << 20;

// A row for each rank, of the first elements of `scratch`.
at::Tensor rows(const at::Tensor& scratch, int size, int64_t length) {
  return scratch.narrow(0, 0, size * length).view({size, length});
}

}  // namespace

std::unique_ptr<Work> NcclCollectives::all_reduce_sum(at::Tensor tensor) const {
  const c10::cuda::CUDAGuard guard(member_.device);
  const int size = member_.size();
  const int64_t n = tensor.numel();
  if (static_cast<int64_t>(tensor.nbytes()) <= direct_bytes) {
    const at::Tensor others = at::empty({size, n}, tensor.options());
    return transfers_.run("all_reduce_sum", {tensor, others}, [&] { sum_gathered(tensor, others); });
  }
  const int64_t piece = std::max<int64_t>(piece_bytes / static_cast<int64_t>(tensor.element_size()), size);
  const at::Tensor scratch = at::empty({(std::min(piece, n) + size - 1) / size * size}, tensor.options());
  return transfers_.run("all_reduce_sum", {tensor, scratch}, [&] {
    for (int64_t begin = 0; begin < n; begin += piece) {
      sum_piece(tensor.narrow(0, begin, std::min(piece, n - begin)), scratch);
    }
  });
}

void NcclCollectives::sum_gathered(at::Tensor tensor, at::Tensor others) const {
  transfers_.all_gather(others, tensor);
  sum_in_rank_order(std::move(tensor), std::move(others), member_.rank, member_.size());
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
  transfers_.exchange(chunk, [&](int r) { return others.select(0, r); });
  sum_in_rank_order(own, others, member_.rank, size);
  transfers_.exchange([&](int) { return own; }, chunk);
}

std::unique_ptr<Work> NcclCollectives::reduce_scatter_sum(at::Tensor out, at::Tensor tensor,
                                                          std::vector<int64_t> counts) const {
  const c10::cuda::CUDAGuard guard(member_.device);
  const int size = member_.size();
  const int64_t mine = counts[static_cast<size_t>(member_.rank)];
  const Windows windows = make_windows(counts, static_cast<int64_t>(tensor.element_size()), piece_bytes);
  const at::Tensor scratch = at::empty({size * std::min(windows.length, mine)}, tensor.options());
  return transfers_.run("reduce_scatter_sum", {out, tensor, scratch}, [&] {
    const Parts parts(tensor, counts);
    const Parts outs(out, std::span(&mine, 1));
    copy_own_part(out, parts[member_.rank]);
    for (int64_t w = 0; w < windows.count; ++w) {
      const at::Tensor own = outs.window(0, w, windows.length);
      const at::Tensor others = rows(scratch, size, own.numel());
      transfers_.exchange([&](int r) { return parts.window(r, w, windows.length); },
                          [&](int r) { return others.select(0, r); });
      if (own.numel() > 0) sum_in_rank_order(own, others, member_.rank, size);
    }
  });
}

std::unique_ptr<Work> NcclCollectives::all_gather(at::Tensor out, at::Tensor tensor,
                                                  std::vector<int64_t> counts) const {
  return transfers_.run("all_gather", {out, tensor}, [&] {
    if (std::ranges::adjacent_find(counts, std::ranges::not_equal_to()) == counts.end()) {
      return transfers_.all_gather(out, tensor);
    }
    const Parts parts(out, counts);
    copy_own_part(parts[member_.rank], tensor);
    transfers_.exchange([&](int) { return tensor; }, [&](int r) { return parts[r]; });
  });
}

std::unique_ptr<Work> NcclCollectives::all_to_all(at::Tensor out, std::vector<int64_t> from,
                                                  at::Tensor tensor, std::vector<int64_t> to) const {
  return transfers_.run("all_to_all", {out, tensor}, [&] {
    const Parts incoming(out, from);
    const Parts outgoing(tensor, to);
    copy_own_part(incoming[member_.rank], outgoing[member_.rank]);
    transfers_.exchange([&](int r) { return outgoing[r]; }, [&](int r) { return incoming[r]; });
  });
}

std::unique_ptr<Work> NcclCollectives::broadcast(at::Tensor tensor, int root) const {
  return transfers_.run("broadcast", {tensor}, [&] { transfers_.broadcast(tensor, root); });
}

}  // namespace pptrain::comm
