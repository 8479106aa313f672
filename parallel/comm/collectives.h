// Collectives made of isend and irecv. Each takes a communicator that carries no other messages: messages of
// two collectives on it come in the order of the calls, which is the same on all ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "parallel/comm/block_exchange.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/host_blocks.h"

namespace pptrain::comm {

// How a collective waits for one of its messages; `what` says what for.
using Patience = std::function<void(Work& work, const char* what)>;
// Waits as Work::wait does, with the communicator's timeout.
void wait_for_message(Work& work, const char* what);

// A flat tensor as one part per rank. order: the ranks, in the order in which their parts lie; empty: by
// rank.
class Parts {
 public:
  Parts(at::Tensor flat, std::span<const int64_t> counts, std::span<const int> order = {});
  const at::Tensor& flat() const { return flat_; }
  // This rank's part of another tensor that divides alike.
  at::Tensor part_of(const at::Tensor& flat, int rank) const {
    return flat.narrow(0, begins_[rank], counts_[rank]);
  }
  at::Tensor operator[](int rank) const { return part_of(flat_, rank); }
  int64_t longest() const { return *std::ranges::max_element(counts_); }

 private:
  at::Tensor flat_;
  std::vector<int64_t> counts_;  // by rank, as the begins
  std::vector<int64_t> begins_;
};

// --- blocking; tensors are flat ---
void run_all_reduce_sum(Communicator& comm, const HostBlocks& blocks, at::Tensor tensor,
                        const Patience& wait);
void run_reduce_scatter_sum(Communicator& comm, const HostBlocks& blocks, at::Tensor out, const Parts& parts,
                            const Patience& wait);
void run_all_gather(Communicator& comm, const HostBlocks& blocks, const Parts& parts,
                    const at::Tensor& tensor, const Patience& wait);
void run_broadcast(Communicator& comm, at::Tensor tensor, int root, const Patience& wait = wait_for_message);
void run_barrier(Communicator& comm);
// For small tensors: one part per rank, all alike.
void run_all_gather_rows(Communicator& comm, at::Tensor out, const at::Tensor& tensor);

// --- one exchange of messages, so all are posted at once; tensors are flat ---
std::unique_ptr<Work> start_all_gather(Communicator& comm, const Parts& parts, const at::Tensor& tensor);
// Empty parts are sent too: a rank that expects another number of elements fails instead of waiting.
std::unique_ptr<Work> start_all_to_all(Communicator& comm, at::Tensor out, std::span<const int64_t> from,
                                       const at::Tensor& tensor, std::span<const int64_t> to);

// --- what collectives are made of ---

// Bytes of scratch for the sum of a larger tensor over `ranks` ranks: 1 MiB for each rank, so that messages
// stay long enough, and at most 16 MiB. The thread that runs a communicator's sums keeps it.
constexpr int64_t most_sum_scratch(int ranks) {
  return std::min<int64_t>(ranks, 16) << 20;
}

// Elements [begin, begin + length) of a flat tensor, as far as it goes.
at::Tensor window_of(const at::Tensor& flat, int64_t begin, int64_t length);

// A reduce-scatter goes through all parts together, in windows. Returns the elements of a window: `rows` of
// them fit into `scratch_bytes`.
int64_t window_length(int64_t rows, int64_t element_bytes, int64_t scratch_bytes);

}  // namespace pptrain::comm
