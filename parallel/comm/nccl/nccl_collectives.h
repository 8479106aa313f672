// The collectives of a group: NCCL moves bytes, all on the group's one stream, and sums are taken here in
// the order that block_exchange.h has for all transports. Tensors are CUDA tensors, flat, of sizes that fit,
// for groups of two ranks or more (Communicator's start_* functions).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/block_exchange.h"
#include "parallel/comm/collectives.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/nccl/nccl_group.h"
#include "parallel/comm/nccl/nccl_member.h"

namespace pptrain::comm {

// --- What a group does once at its set-up, so that NCCL makes its connections then. In the middle of a step,
// some ranks of the group would wait for the connections while others are elsewhere.
//
// When NCCL connects, from the source of 2.28.9 (NCCL_RUNTIME_CONNECT=1, its default if GPUs have virtual
// memory management):
// - Messages: A pair connects at its first message, whatever its size, on all channels of the pair
//   (enqueue.cc, p2pTaskAppend).
// - Collectives: An algorithm connects at the first collective that takes it. It connects on all channels of
//   the communicator, for all protocols (LL, LL128 and Simple) together (enqueue.cc, ncclPrepareTasks;
//   group.cc, ncclCollPreconnect; transport/generic.cc).
// - Broadcasts: They always take the ring.
// - All-gathers: They take the ring, NVLS (a group within one host with NVSwitch), PAT (one rank a host) or
//   CollNet (if the user asks for it). NCCL chooses by a cost of the form latency + bytes / bandwidth
//   (graph/tuning.cc, ncclTopoTuneModel and ncclTopoGetAlgoTime).
// So one message with each rank and one broadcast are enough, whatever their sizes. All-gathers are tried at
// all sizes, in steps of two.

// Bytes of a rank in the all-gathers that are tried, rising, at least one: up to 64 MiB of all ranks. An
// algorithm that is faster only above that connects at its first use. The ranks of a group come to it in the
// same order, so it costs only time.
inline std::vector<int64_t> warm_up_gathers(int ranks) {
  constexpr int64_t most = int64_t{64} << 20;
  std::vector<int64_t> sizes{1};
  while (2 * sizes.back() * ranks <= most) sizes.push_back(2 * sizes.back());
  return sizes;
}

class NcclCollectives {
 public:
  // Collective over the group, which `id` names (new_nccl_id), on the current device. All connections are
  // made. `member` must outlive it.
  NcclCollectives(const NcclMember& member, const std::string& id);

  // All works of a group go in the order in which they are started, which is the same on all ranks. Scratch
  // is allocated on the caller's stream and kept by the work, as the other tensors are.
  std::unique_ptr<Work> all_reduce_sum(at::Tensor tensor, const HostBlocks& blocks) const;
  std::unique_ptr<Work> reduce_scatter_sum(at::Tensor out, const Parts& parts,
                                           const HostBlocks& blocks) const;
  std::unique_ptr<Work> all_gather(at::Tensor out, at::Tensor tensor, std::vector<int64_t> counts,
                                   const HostBlocks& blocks) const;
  std::unique_ptr<Work> all_to_all(at::Tensor out, std::vector<int64_t> from, at::Tensor tensor,
                                   std::vector<int64_t> to) const;
  std::unique_ptr<Work> broadcast(at::Tensor tensor, int root) const;

 private:
  // Runs `body`, which calls the move_* functions, behind what the current stream holds now. `name`,
  // "all_gather", for messages; the work keeps `tensors`.
  std::unique_ptr<Work> run(const char* name, std::vector<at::Tensor> tensors,
                            const std::function<void()>& body) const;
  void warm_up() const;

  // --- in a body; the tensors are contiguous ---
  void sum_piece(at::Tensor flat, at::Tensor scratch, const HostBlocks& blocks) const;
  void sum_parts(BlockSum sum, const HostBlocks& blocks) const;
  void gather_parts(const BlockGather& gather, const HostBlocks& blocks) const;
  // outgoing(r), incoming(r): what goes to and comes from rank r; empty tensors stay.
  void move_parts(const PartOf& outgoing, const PartOf& incoming) const;
  void move(const Parcels& parcels, int several) const;  // groups_of_calls
  // out: one part of the size of `tensor` for each rank; `tensor` may be this rank's.
  void move_to_all(at::Tensor out, const at::Tensor& tensor) const;
  void move_from(at::Tensor tensor, int root) const;

  const NcclMember& member_;
  const CudaStream stream_;  // goes after the group
  const std::unique_ptr<NcclGroup> group_;
};

}  // namespace pptrain::comm
