#include "parallel/comm/collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "parallel/comm/operands.h"
#include "parallel/comm/rank_order_sum.h"
#include "parallel/comm/works.h"

namespace pptrain::comm {
namespace {

// Scratch of a sum: at most this much, whatever the tensor's size.
constexpr int64_t piece_bytes = 16 << 20;
// Up to here every rank receives everybody's whole tensor: one exchange instead of two.
constexpr int64_t direct_bytes = 32 << 10;

using Works = std::vector<std::unique_ptr<Work>>;

// What an exchange does with the parts that hold nothing.
enum class Empty { travels, stays };

// What goes to and comes from every other rank: outgoing(r), incoming(r). The receives are posted first, and
// every rank begins with another peer.
template <typename Outgoing, typename Incoming>
Works post(Communicator& comm, Empty empty, Outgoing&& outgoing, Incoming&& incoming) {
  const int me = comm.rank();
  const int size = comm.size();
  const auto travels = [&](const at::Tensor& part) { return empty == Empty::travels || part.numel() > 0; };
  Works works;
  for (int step = 1; step < size; ++step) {
    const int r = (me + size - step) % size;
    if (at::Tensor part = incoming(r); travels(part)) works.push_back(comm.irecv(std::move(part), r));
  }
  for (int step = 1; step < size; ++step) {
    const int r = (me + step) % size;
    if (const at::Tensor part = outgoing(r); travels(part)) works.push_back(comm.isend(part, r));
  }
  return works;
}

void wait_all(const Works& works, const Patience& wait, const char* what) {
  for (const auto& work : works) wait(*work, what);
}

int64_t element_bytes(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.element_size());
}

void all_reduce_direct(Communicator& comm, at::Tensor flat, const Patience& wait) {
  at::Tensor others = at::empty({comm.size(), flat.numel()}, flat.options());
  const Works works = post(
      comm, Empty::stays, [&](int) { return flat; }, [&](int r) { return others.select(0, r); });
  wait_all(works, wait, "all_reduce_sum");
  sum_in_rank_order(flat, others, comm.rank(), comm.size());
}

// Reduce-scatter by exchange of chunks, then all-gather: each rank sends and receives 2 (size - 1) / size of
// the tensor.
void all_reduce_chunked(Communicator& comm, at::Tensor flat, at::Tensor scratch, const Patience& wait) {
  const int size = comm.size();
  const int64_t n = flat.numel();
  const auto chunk = [&](int r) {
    const int64_t begin = n * r / size;
    return flat.narrow(0, begin, n * (r + 1) / size - begin);
  };
  const at::Tensor own = chunk(comm.rank());
  const at::Tensor others = scratch.narrow(0, 0, size * own.numel()).view({size, own.numel()});
  wait_all(post(comm, Empty::stays, chunk, [&](int r) { return others.select(0, r); }), wait,
           "all_reduce_sum, exchange of chunks");
  sum_in_rank_order(own, others, comm.rank(), size);
  wait_all(post(
               comm, Empty::stays, [&](int) { return own; }, chunk),
           wait, "all_reduce_sum, all-gather");
}

}  // namespace

void wait_for_message(Work& work, const char* what) {
  work.wait([what] { return std::string(what); });
}

void run_all_reduce_sum(Communicator& comm, at::Tensor tensor, const Patience& wait) {
  const c10::InferenceMode inference;
  const int size = comm.size();
  const int64_t n = tensor.numel();
  if (n * element_bytes(tensor) <= direct_bytes) return all_reduce_direct(comm, tensor, wait);
  const int64_t piece = std::max<int64_t>(piece_bytes / element_bytes(tensor), size);
  const at::Tensor scratch = at::empty({(std::min(piece, n) + size - 1) / size * size}, tensor.options());
  for (int64_t begin = 0; begin < n; begin += piece) {
    all_reduce_chunked(comm, tensor.narrow(0, begin, std::min(piece, n - begin)), scratch, wait);
  }
}

// Every rank sends the others their part and adds up what it receives of its own.
void run_reduce_scatter_sum(Communicator& comm, at::Tensor out, const at::Tensor& tensor,
                            std::span<const int64_t> counts, const Patience& wait) {
  const c10::InferenceMode inference;
  const int me = comm.rank();
  const int size = comm.size();
  const Parts parts(tensor, counts);
  copy_own_part(out, parts[me]);
  const Windows windows = make_windows(counts, element_bytes(tensor), piece_bytes);
  const at::Tensor scratch = at::empty({size * std::min(windows.length, counts[me])}, tensor.options());
  const Parts outs(out, std::span(&counts[me], 1));
  for (int64_t w = 0; w < windows.count; ++w) {
    const at::Tensor own = outs.window(0, w, windows.length);
    const at::Tensor others = scratch.narrow(0, 0, size * own.numel()).view({size, own.numel()});
    wait_all(post(
                 comm, Empty::stays, [&](int r) { return parts.window(r, w, windows.length); },
                 [&](int r) { return others.select(0, r); }),
             wait, "reduce_scatter_sum");
    if (own.numel() > 0) sum_in_rank_order(own, others, me, size);
  }
}

// Binomial tree: in the round of distance d = 1, 2, 4, ..., ranks below d (relative to the root) send to rank
// + d.
void run_broadcast(Communicator& comm, at::Tensor tensor, int root) {
  const int size = comm.size();
  const int relative = (comm.rank() - root + size) % size;
  const auto absolute = [&](int r) { return (r + root) % size; };
  int distance = 1;
  while (distance <= relative) distance *= 2;
  if (relative > 0) {
    comm.irecv(tensor, absolute(relative - distance / 2))->wait([] { return "broadcast"; });
  }
  Works works;
  for (; relative + distance < size; distance *= 2) {
    works.push_back(comm.isend(tensor, absolute(relative + distance)));
  }
  wait_all(works, wait_for_message, "broadcast");
}

// Dissemination barrier (Hensgen, Finkel, Manber 1988): ceil(log2(size)) rounds.
void run_barrier(Communicator& comm) {
  const int size = comm.size();
  const auto options = at::TensorOptions().dtype(at::kByte).device(at::kCPU);
  for (int distance = 1; distance < size; distance *= 2) {
    Works works;
    works.push_back(comm.irecv(at::empty({1}, options), (comm.rank() + size - distance) % size));
    works.push_back(comm.isend(at::zeros({1}, options), (comm.rank() + distance) % size));
    wait_all(works, wait_for_message, "barrier");
  }
}

std::unique_ptr<Work> start_all_gather(Communicator& comm, at::Tensor out, const at::Tensor& tensor,
                                       std::span<const int64_t> counts) {
  const c10::InferenceMode inference;
  const Parts parts(std::move(out), counts);
  copy_own_part(parts[comm.rank()], tensor);
  return std::make_unique<AllWorks>(post(
      comm, Empty::stays, [&](int) { return tensor; }, [&](int r) { return parts[r]; }));
}

std::unique_ptr<Work> start_all_to_all(Communicator& comm, at::Tensor out, std::span<const int64_t> from,
                                       const at::Tensor& tensor, std::span<const int64_t> to) {
  const c10::InferenceMode inference;
  const Parts incoming(std::move(out), from);
  const Parts outgoing(tensor, to);
  copy_own_part(incoming[comm.rank()], outgoing[comm.rank()]);
  return std::make_unique<AllWorks>(post(
      comm, Empty::travels, [&](int r) { return outgoing[r]; }, [&](int r) { return incoming[r]; }));
}

Parts::Parts(at::Tensor flat, std::span<const int64_t> counts)
    : flat_(std::move(flat)), counts_(counts.begin(), counts.end()) {
  int64_t begin = 0;
  for (const int64_t count : counts_) {
    begins_.push_back(begin);
    begin += count;
  }
}

at::Tensor Parts::window(int rank, int64_t window, int64_t length) const {
  const int64_t begin = std::min(window * length, counts_[rank]);
  return flat_.narrow(0, begins_[rank] + begin, std::min(length, counts_[rank] - begin));
}

Windows make_windows(std::span<const int64_t> counts, int64_t element_bytes, int64_t scratch_bytes) {
  const int64_t longest = *std::ranges::max_element(counts);
  const int64_t length =
      std::max<int64_t>(scratch_bytes / element_bytes / static_cast<int64_t>(counts.size()), 1);
  return {.length = length, .count = (longest + length - 1) / length};
}

}  // namespace pptrain::comm
