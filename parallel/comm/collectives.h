// Collectives made of isend and irecv. Each takes a communicator that carries no other messages: messages of
// two collectives on it come in the order of the calls, which is the same on all ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "parallel/comm/communicator.h"

namespace pptrain::comm {

// How a collective waits for one of its messages; `what` says what for.
using Patience = std::function<void(Work& work, const char* what)>;
// Waits as Work::wait does, with the communicator's timeout.
void wait_for_message(Work& work, const char* what);

// --- blocking; tensors are flat ---
void run_all_reduce_sum(Communicator& comm, at::Tensor tensor, const Patience& wait);
void run_reduce_scatter_sum(Communicator& comm, at::Tensor out, const at::Tensor& tensor,
                            std::span<const int64_t> counts, const Patience& wait);
void run_broadcast(Communicator& comm, at::Tensor tensor, int root, const Patience& wait = wait_for_message);
void run_barrier(Communicator& comm);
void run_all_gather(Communicator& comm, at::Tensor out, const at::Tensor& tensor);

// --- one exchange of messages, so all are posted at once; tensors are flat ---
std::unique_ptr<Work> start_all_gather(Communicator& comm, at::Tensor out, const at::Tensor& tensor,
                                       std::span<const int64_t> counts);
// Empty parts are sent too: a rank that expects another number of elements fails instead of waiting.
std::unique_ptr<Work> start_all_to_all(Communicator& comm, at::Tensor out, std::span<const int64_t> from,
                                       const at::Tensor& tensor, std::span<const int64_t> to);

// --- what collectives are made of ---

// own <- ((x0 + x1) + x2) + ..., where x_me is `own` [n], and the others are the rows of `others` [size, n],
// which is scratch afterwards; its row `me` is not read. On the tensors' device.
void sum_in_rank_order(at::Tensor own, at::Tensor others, int me, int size);

// Bytes of scratch for the sum of a larger tensor over `ranks` ranks: 1 MiB for each rank, so that messages
// stay long enough, and at most 16 MiB. The thread that runs a communicator's sums keeps it.
constexpr int64_t most_sum_scratch(int ranks) {
  return std::min<int64_t>(ranks, 16) << 20;
}

// A flat tensor as one part per rank, by rank.
class Parts {
 public:
  Parts(at::Tensor flat, std::span<const int64_t> counts);
  at::Tensor operator[](int rank) const { return flat_.narrow(0, begins_[rank], counts_[rank]); }
  // Elements [begin, begin + length) of the rank's part, as far as it goes.
  at::Tensor window(int rank, int64_t begin, int64_t length) const;

 private:
  at::Tensor flat_;
  std::vector<int64_t> counts_;
  std::vector<int64_t> begins_;
};

// A reduce-scatter goes through all parts together, in windows. Returns the elements of a window: one window
// for each rank fits into `scratch_bytes`.
int64_t window_length(size_t ranks, int64_t element_bytes, int64_t scratch_bytes);

}  // namespace pptrain::comm
