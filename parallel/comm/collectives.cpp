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

// The receives are posted first.
Works post(Communicator& comm, const Parcels& parcels, Empty empty = Empty::stays) {
  const auto travels = [&](const Parcel& parcel) {
    return empty == Empty::travels || parcel.tensor.numel() > 0;
  };
  Works works;
  for (const Parcel& parcel : parcels.in) {
    if (travels(parcel)) works.push_back(comm.irecv(parcel.tensor, parcel.peer));
  }
  for (const Parcel& parcel : parcels.out) {
    if (travels(parcel)) works.push_back(comm.isend(parcel.tensor, parcel.peer));
  }
  return works;
}

Works post_to_all(Communicator& comm, Empty empty, const PartOf& outgoing, const PartOf& incoming) {
  return post(comm, exchange_with_all(comm.rank(), comm.size(), outgoing, incoming), empty);
}

void wait_all(const Works& works, const Patience& wait, const char* what) {
  for (const auto& work : works) wait(*work, what);
}

int64_t element_bytes(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.element_size());
}

void all_reduce_direct(Communicator& comm, at::Tensor flat, const Patience& wait) {
  at::Tensor others = at::empty({comm.size(), flat.numel()}, flat.options());
  const Works works = post_to_all(
      comm, Empty::stays, [&](int) { return flat; }, [&](int r) { return others.select(0, r); });
  wait_all(works, wait, "all_reduce_sum");
  sum_in_pairs(flat, others, comm.rank());
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

// Rank 0 receives the whole tensor of every rank, and adds. In parts, because its scratch is bounded.
void all_reduce_on_root(Communicator& comm, at::Tensor flat, const Patience& wait) {
  const int size = comm.size();
  const int64_t length = std::max<int64_t>(most_sum_scratch(comm.size()) / element_bytes(flat) / size, 1);
  const int ranks = Tree(comm.rank(), size).ranks;
  for (int64_t begin = 0; begin < flat.numel(); begin += length) {
    const at::Tensor part = flat.narrow(0, begin, std::min(length, flat.numel() - begin));
    const at::Tensor rows = at::empty({ranks, part.numel()}, flat.options());
    rows.select(0, 0).copy_(part, /*non_blocking=*/true);
    gather_rows(comm, rows, wait, "all_reduce_sum");
    if (comm.rank() == 0) sum_in_pairs(part, rows, 0);
  }
  run_broadcast(comm, flat, 0, wait);
}

// Long tensors are summed in windows, each with half of the scratch: while one is added up, the next travels.
constexpr int windows_under_way = 2;

// A window of a sum, the first step of which is under way.
class Window {
 public:
  Window(Communicator& comm, const HostBlocks& blocks, at::Tensor own, const PartOf& part, at::Tensor scratch)
      : comm_(comm),
        sum_(blocks, comm.rank(), std::move(own), part, std::move(scratch)),
        in_blocks_(blocks.block > 1),
        works_(post(comm, in_blocks_ ? sum_.within() : sum_.between())) {}

  void add_up(const Patience& wait, const char* what) {
    wait_all(works_, wait, what);
    if (in_blocks_) {
      sum_.add_within();
      works_ = post(comm_, sum_.between());
      wait_all(works_, wait, what);
    }
    sum_.add_between();
  }

 private:
  Communicator& comm_;
  BlockSum sum_;
  bool in_blocks_;  // of several ranks; alike on all ranks, so that messages are posted in one order
  Works works_;
};

// A gather, the first step of which is under way.
class Gather {
 public:
  Gather(Communicator& comm, const HostBlocks& blocks, const PartOf& part)
      : comm_(comm),
        gather_(blocks, comm.rank(), part),
        between_blocks_(blocks.count() > 1),
        works_(post(comm, between_blocks_ ? gather_.between : gather_.within)) {}

  void finish(const Patience& wait, const char* what) {
    wait_all(works_, wait, what);
    if (!between_blocks_) return;
    works_ = post(comm_, gather_.within);
    wait_all(works_, wait, what);
  }

 private:
  Communicator& comm_;
  BlockGather gather_;
  bool between_blocks_;
  Works works_;
};

// begin(i) posts window i of `count`, finish(window, i) is called in order.
template <typename Begin, typename Finish>
void by_windows(int64_t count, Begin&& begin, Finish&& finish) {
  std::optional<Window> next;
  if (count > 0) next.emplace(begin(0));
  for (int64_t i = 0; i < count; ++i) {
    Window window = *std::exchange(next, std::nullopt);
    if (i + 1 < count) next.emplace(begin(i + 1));
    finish(window, i);
  }
}

// Scratch of `elements` elements for each window under way; a second one only if there are several windows.
at::Tensor scratch_of(int64_t windows, int64_t elements, const at::TensorOptions& options) {
  return at::empty({std::min<int64_t>(windows, windows_under_way), elements}, options);
}

}  // namespace

void wait_for_message(Work& work, const char* what) {
  work.wait([what] { return std::string(what); });
}

void run_all_reduce_sum(Communicator& comm, const HostBlocks& blocks, at::Tensor tensor,
                        const Patience& wait) {
  const c10::InferenceMode inference;
  const int size = comm.size();
  const int64_t n = tensor.numel();
  if (n * element_bytes(tensor) <= whole_bytes) {
    return size <= direct_ranks ? all_reduce_direct(comm, tensor, wait)
                                : all_reduce_on_root(comm, tensor, wait);
  }
  // Reduce-scatter by exchange of chunks, then all-gather: each rank sends and receives 2 (size - 1) / size
  // of the tensor.
  const int64_t length = size * window_length(blocks.most_rows(), element_bytes(tensor),
                                              most_sum_scratch(size) / windows_under_way);
  const int64_t pieces = (n + length - 1) / length;
  const at::Tensor scratch =
      scratch_of(pieces, blocks.most_rows() * ((std::min(length, n) + size - 1) / size), tensor.options());
  const auto chunk = [&](int64_t piece, int r) {
    const int64_t elements = std::min(length, n - piece * length);
    const int64_t begin = elements * r / size;
    return tensor.narrow(0, piece * length + begin, elements * (r + 1) / size - begin);
  };
  std::optional<Gather> gathered;
  by_windows(
      pieces,
      [&](int64_t piece) {
        return Window(
            comm, blocks, chunk(piece, comm.rank()), [&](int r) { return chunk(piece, r); },
            scratch[piece % windows_under_way]);
      },
      [&](Window& window, int64_t piece) {
        window.add_up(wait, "all_reduce_sum, exchange of chunks");
        std::optional<Gather> before = std::exchange(gathered, std::nullopt);
        gathered.emplace(comm, blocks, [&](int r) { return chunk(piece, r); });
        if (before) before->finish(wait, "all_reduce_sum, all-gather");
      });
  gathered->finish(wait, "all_reduce_sum, all-gather");
}

// Every rank sends the others their parts, and adds up what it receives of its own part.
void run_reduce_scatter_sum(Communicator& comm, const HostBlocks& blocks, at::Tensor out, const Parts& parts,
                            const Patience& wait) {
  const c10::InferenceMode inference;
  const int me = comm.rank();
  const int size = comm.size();
  const at::Tensor& tensor = parts.flat();
  if (size > direct_ranks && tensor.numel() * element_bytes(tensor) <= whole_bytes) {
    const at::Tensor sum = tensor.clone();
    all_reduce_on_root(comm, sum, wait);
    return copy_own_part(out, parts.part_of(sum, me));
  }
  copy_own_part(out, parts[me]);
  const int64_t length =
      window_length(blocks.most_rows(), element_bytes(tensor), most_sum_scratch(size) / windows_under_way);
  const int64_t windows = (parts.longest() + length - 1) / length;
  const at::Tensor scratch =
      scratch_of(windows, blocks.most_rows() * std::min(length, parts.longest()), tensor.options());
  by_windows(
      windows,
      [&](int64_t i) {
        return Window(
            comm, blocks, window_of(out, i * length, length),
            [&](int r) { return window_of(parts[r], i * length, length); }, scratch[i % windows_under_way]);
      },
      [&](Window& window, int64_t) { window.add_up(wait, "reduce_scatter_sum"); });
}

void run_all_gather(Communicator& comm, const HostBlocks& blocks, const Parts& parts,
                    const at::Tensor& tensor, const Patience& wait) {
  const c10::InferenceMode inference;
  copy_own_part(parts[comm.rank()], tensor);
  Gather(comm, blocks, [&](int r) { return parts[r]; }).finish(wait, "all_gather");
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
  run_all_reduce_sum(comm, {.ranks = comm.size(), .block = 1},
                     at::zeros({1}, at::TensorOptions().dtype(at::kByte).device(at::kCPU)),
                     [](Work& work, const char* /*what*/) { wait_for_message(work, "barrier"); });
}

void run_all_gather_rows(Communicator& comm, at::Tensor out, const at::Tensor& tensor) {
  const c10::InferenceMode inference;
  const int me = comm.rank();
  const int64_t n = tensor.numel();
  if (n == 0) return;
  if (comm.size() <= direct_ranks || n * element_bytes(tensor) > whole_bytes) {
    const std::vector<int64_t> counts(static_cast<size_t>(comm.size()), n);
    return start_all_gather(comm, Parts(std::move(out), counts), tensor)->wait([] { return "all_gather"; });
  }
  const at::Tensor rows = out.view({comm.size(), n}).narrow(0, me, Tree(me, comm.size()).ranks);
  copy_own_part(rows.select(0, 0), tensor);
  gather_rows(comm, rows, wait_for_message, "all_gather");
  run_broadcast(comm, out, 0);
}

std::unique_ptr<Work> start_all_gather(Communicator& comm, const Parts& parts, const at::Tensor& tensor) {
  const c10::InferenceMode inference;
  copy_own_part(parts[comm.rank()], tensor);
  return join(post_to_all(
      comm, Empty::stays, [&](int) { return tensor; }, [&](int r) { return parts[r]; }));
}

std::unique_ptr<Work> start_all_to_all(Communicator& comm, at::Tensor out, std::span<const int64_t> from,
                                       const at::Tensor& tensor, std::span<const int64_t> to) {
  const c10::InferenceMode inference;
  const Parts incoming(std::move(out), from);
  const Parts outgoing(tensor, to);
  copy_own_part(incoming[comm.rank()], outgoing[comm.rank()]);
  return join(post_to_all(
      comm, Empty::travels, [&](int r) { return outgoing[r]; }, [&](int r) { return incoming[r]; }));
}

Parts::Parts(at::Tensor flat, std::span<const int64_t> counts, std::span<const int> order)
    : flat_(std::move(flat)), counts_(counts.begin(), counts.end()), begins_(counts.size()) {
  int64_t begin = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const size_t rank = order.empty() ? i : static_cast<size_t>(order[i]);
    begins_[rank] = begin;
    begin += counts_[rank];
  }
}

at::Tensor window_of(const at::Tensor& flat, int64_t begin, int64_t length) {
  const int64_t first = std::min(begin, flat.numel());
  return flat.narrow(0, first, std::min(length, flat.numel() - first));
}

int64_t window_length(int64_t rows, int64_t element_bytes, int64_t scratch_bytes) {
  return std::max<int64_t>(scratch_bytes / element_bytes / rows, 1);
}

}  // namespace pptrain::comm
