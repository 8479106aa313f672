// What a group does once at its set-up, so that NCCL makes its connections then and not in the middle of a
// step, where some ranks of the group would wait in the making while others are elsewhere.
//
// What NCCL connects when, from the source of 2.28.9 (NCCL_RUNTIME_CONNECT=1, its default where GPUs have
// virtual memory management):
// - Messages: a pair at its first message, whatever its size, all channels of the pair (enqueue.cc,
//   p2pTaskAppend).
// - Collectives: an algorithm at the first collective that takes it, on all channels of the communicator, and
//   for all protocols, LL, LL128 and Simple, together (enqueue.cc, ncclPrepareTasks; group.cc,
//   ncclCollPreconnect; transport/generic.cc).
// - A broadcast always takes the ring. An all-gather takes the ring, NVLS (a group within one host with
//   NVSwitch), PAT (one rank a host) or CollNet (where the user asks for it): what a cost of the form
//   latency + bytes / bandwidth says (graph/tuning.cc, ncclTopoTuneModel and ncclTopoGetAlgoTime).
// So one message with each rank and one broadcast do, whatever their sizes, and all-gathers are tried at all
// sizes, in steps of two.
#pragma once

#include <cstdint>
#include <vector>

namespace pptrain::comm {

// Bytes of a rank in the all-gathers that are tried, rising, at least one: up to 64 MiB of all ranks. An
// algorithm that pays beyond that alone connects at its first use; the ranks of a group come to that in the
// same order, so it costs time there and nothing else.
inline std::vector<int64_t> warm_up_gathers(int ranks) {
  constexpr int64_t most = int64_t{64} << 20;
  std::vector<int64_t> sizes{1};
  while (2 * sizes.back() * ranks <= most) sizes.push_back(2 * sizes.back());
  return sizes;
}

}  // namespace pptrain::comm
