#include "parallel/comm/collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "parallel/comm/operands.h"
#include "parallel/comm/split.h"

namespace pptrain::comm {
namespace {

// Up to this size a tensor travels whole: in one exchange instead of two, or up and down a tree. Above it,
// chunks save more than their messages cost.
constexpr int64_t whole_bytes = 32 << 10;

using Works = std::vector<std::unique_ptr<Work>>;

// Whether an exchange sends empty parts.
enum class Empty { travels, stays };

// Sends outgoing(r) to every other rank r, and receives incoming(r) from it. The receives are posted first,
// and every rank begins with another peer.
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

// Sends the rows of this rank and of the ranks below it up the tree; rank 0 gets all. rows: [Tree::ranks, n];
// the first row is this rank's.
void gather_rows(Communicator& comm, const at::Tensor& rows, const Patience& wait, const char* what) {
  const int me = comm.rank();
  const Tree tree(me, comm.size());
  Works works;
  for (size_t i = 0; i < tree.children.size(); ++i) {
    const int child = tree.children[i];
    works.push_back(comm.irecv(rows.narrow(0, child - me, tree.ranks_below(i, me)), child));
  }
  wait_all(works, wait, what);
  if (me > 0) wait(*comm.isend(rows, tree.parent), what);
}

// Rank 0 receives the whole tensor of every rank, and adds in rank order. In parts, because its scratch is
// bounded.
void all_reduce_on_root(Communicator& comm, at::Tensor flat, const Patience& wait) {
  const int size = comm.size();
  const int64_t length = std::max<int64_t>(most_sum_scratch(comm.size()) / element_bytes(flat) / size, 1);
  const int ranks = Tree(comm.rank(), size).ranks;
  for (int64_t begin = 0; begin < flat.numel(); begin += length) {
    const at::Tensor part = flat.narrow(0, begin, std::min(length, flat.numel() - begin));
    const at::Tensor rows = at::empty({ranks, part.numel()}, flat.options());
    rows.select(0, 0).copy_(part, /*non_blocking=*/true);
    gather_rows(comm, rows, wait, "all_reduce_sum");
    if (comm.rank() == 0) sum_in_rank_order(part, rows, 0, size);
  }
  run_broadcast(comm, flat, 0, wait);
}

// Long tensors are summed in windows, each with half of the scratch: while one is added up, the next travels.
constexpr int windows_under_way = 2;

// The exchange of one window: sends what `outgoing` gives for each rank, and adds up this rank's own elements
// and those that arrive from the others.
struct Window {
  at::Tensor own, others;  // [n], [ranks, n]
  Works works;

  template <typename Outgoing>
  Window(Communicator& comm, at::Tensor own_elements, at::Tensor scratch, Outgoing&& outgoing)
      : own(std::move(own_elements)),
        others(scratch.narrow(0, 0, comm.size() * own.numel()).view({comm.size(), own.numel()})),
        works(post(comm, Empty::stays, outgoing, [&](int r) { return others.select(0, r); })) {}

  void add_up(const Communicator& comm, const Patience& wait, const char* what) const {
    wait_all(works, wait, what);
    if (own.numel() > 0) sum_in_rank_order(own, others, comm.rank(), comm.size());
  }
};

// begin(i) posts window i of `count`, finish(window, i) is called in order.
template <typename Begin, typename Finish>
void by_windows(int64_t count, Begin&& begin, Finish&& finish) {
  std::optional<Window> next;
  if (count > 0) next = begin(0);
  for (int64_t i = 0; i < count; ++i) {
    const Window window = *std::exchange(next, std::nullopt);
    if (i + 1 < count) next = begin(i + 1);
    finish(window, i);
  }
}

// Scratch of `elements` elements for each window under way; a second one only if there are several windows.
at::Tensor scratch_of(int64_t windows, int64_t elements, const at::TensorOptions& options) {
  return at::empty({std::min<int64_t>(windows, windows_under_way), elements}, options);
}

}  // namespace

// a + b has the bits of b + a, so the sum may start in either operand.
void sum_in_rank_order(at::Tensor own, at::Tensor others, int me, int size) {
  if (me == 0) {
    for (int r = 1; r < size; ++r) own.add_(others.select(0, r));
    return;
  }
  at::Tensor sum = others.select(0, 0);
  for (int r = 1; r < me; ++r) sum.add_(others.select(0, r));
  own.add_(sum);
  for (int r = me + 1; r < size; ++r) own.add_(others.select(0, r));
}

void wait_for_message(Work& work, const char* what) {
  work.wait([what] { return std::string(what); });
}

void run_all_reduce_sum(Communicator& comm, at::Tensor tensor, const Patience& wait) {
  const c10::InferenceMode inference;
  const int size = comm.size();
  const int64_t n = tensor.numel();
  if (n * element_bytes(tensor) <= whole_bytes) {
    return size <= direct_ranks ? all_reduce_direct(comm, tensor, wait)
                                : all_reduce_on_root(comm, tensor, wait);
  }
  // Reduce-scatter by exchange of chunks, then all-gather: each rank sends and receives 2 (size - 1) / size
  // of the tensor.
  const int64_t length =
      std::max<int64_t>(most_sum_scratch(size) / windows_under_way / element_bytes(tensor), size);
  const int64_t pieces = (n + length - 1) / length;
  const at::Tensor scratch =
      scratch_of(pieces, (std::min(length, n) + size - 1) / size * size, tensor.options());
  const auto chunk = [&](int64_t piece, int r) {
    const int64_t elements = std::min(length, n - piece * length);
    const int64_t begin = elements * r / size;
    return tensor.narrow(0, piece * length + begin, elements * (r + 1) / size - begin);
  };
  Works gathered;
  by_windows(
      pieces,
      [&](int64_t piece) {
        return Window(comm, chunk(piece, comm.rank()), scratch[piece % windows_under_way],
                      [&](int r) { return chunk(piece, r); });
      },
      [&](const Window& window, int64_t piece) {
        window.add_up(comm, wait, "all_reduce_sum, exchange of chunks");
        const Works before = std::exchange(gathered, post(
                                                         comm, Empty::stays, [&](int) { return window.own; },
                                                         [&](int r) { return chunk(piece, r); }));
        wait_all(before, wait, "all_reduce_sum, all-gather");
      });
  wait_all(gathered, wait, "all_reduce_sum, all-gather");
}

// Every rank sends the others their parts, and adds up what it receives of its own part.
void run_reduce_scatter_sum(Communicator& comm, at::Tensor out, const at::Tensor& tensor,
                            std::span<const int64_t> counts, const Patience& wait) {
  const c10::InferenceMode inference;
  const int me = comm.rank();
  const int size = comm.size();
  const Parts parts(tensor, counts);
  if (size > direct_ranks && tensor.numel() * element_bytes(tensor) <= whole_bytes) {
    const at::Tensor sum = tensor.clone();
    all_reduce_on_root(comm, sum, wait);
    return copy_own_part(out, Parts(sum, counts)[me]);
  }
  copy_own_part(out, parts[me]);
  const int64_t length =
      window_length(counts.size(), element_bytes(tensor), most_sum_scratch(size) / windows_under_way);
  const int64_t windows = (*std::ranges::max_element(counts) + length - 1) / length;
  const at::Tensor scratch = scratch_of(windows, size * std::min(length, counts[me]), tensor.options());
  const Parts outs(out, std::span(&counts[me], 1));
  by_windows(
      windows,
      [&](int64_t i) {
        return Window(comm, outs.window(0, i * length, length), scratch[i % windows_under_way],
                      [&](int r) { return parts.window(r, i * length, length); });
      },
      [&](const Window& window, int64_t) { window.add_up(comm, wait, "reduce_scatter_sum"); });
}

// Ranks of the tree are counted from the root on.
void run_broadcast(Communicator& comm, at::Tensor tensor, int root, const Patience& wait) {
  const int size = comm.size();
  const int relative = (comm.rank() - root + size) % size;
  const auto absolute = [&](int r) { return (r + root) % size; };
  const Tree tree(relative, size);
  if (relative > 0) wait(*comm.irecv(tensor, absolute(tree.parent)), "broadcast");
  Works works;
  for (auto child = tree.children.rbegin(); child != tree.children.rend(); ++child)
    works.push_back(comm.isend(tensor, absolute(*child)));
  wait_all(works, wait, "broadcast");
}

void run_barrier(Communicator& comm) {
  run_all_reduce_sum(comm, at::zeros({1}, at::TensorOptions().dtype(at::kByte).device(at::kCPU)),
                     [](Work& work, const char* /*what*/) { wait_for_message(work, "barrier"); });
}

void run_all_gather(Communicator& comm, at::Tensor out, const at::Tensor& tensor) {
  const c10::InferenceMode inference;
  const int me = comm.rank();
  const int64_t n = tensor.numel();
  if (n == 0) return;
  if (comm.size() <= direct_ranks || n * element_bytes(tensor) > whole_bytes) {
    const std::vector<int64_t> counts(static_cast<size_t>(comm.size()), n);
    return start_all_gather(comm, std::move(out), tensor, counts)->wait([] { return "all_gather"; });
  }
  const at::Tensor rows = out.view({comm.size(), n}).narrow(0, me, Tree(me, comm.size()).ranks);
  copy_own_part(rows.select(0, 0), tensor);
  gather_rows(comm, rows, wait_for_message, "all_gather");
  run_broadcast(comm, out, 0);
}

std::unique_ptr<Work> start_all_gather(Communicator& comm, at::Tensor out, const at::Tensor& tensor,
                                       std::span<const int64_t> counts) {
  const c10::InferenceMode inference;
  const Parts parts(std::move(out), counts);
  copy_own_part(parts[comm.rank()], tensor);
  return join(post(
      comm, Empty::stays, [&](int) { return tensor; }, [&](int r) { return parts[r]; }));
}

std::unique_ptr<Work> start_all_to_all(Communicator& comm, at::Tensor out, std::span<const int64_t> from,
                                       const at::Tensor& tensor, std::span<const int64_t> to) {
  const c10::InferenceMode inference;
  const Parts incoming(std::move(out), from);
  const Parts outgoing(tensor, to);
  copy_own_part(incoming[comm.rank()], outgoing[comm.rank()]);
  return join(post(
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

at::Tensor Parts::window(int rank, int64_t begin, int64_t length) const {
  const int64_t first = std::min(begin, counts_[rank]);
  return flat_.narrow(0, begins_[rank] + first, std::min(length, counts_[rank] - first));
}

int64_t window_length(size_t ranks, int64_t element_bytes, int64_t scratch_bytes) {
  return std::max<int64_t>(scratch_bytes / element_bytes / static_cast<int64_t>(ranks), 1);
}

}  // namespace pptrain::comm
