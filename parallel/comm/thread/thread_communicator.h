// Ranks as threads of one process: the embedded default, and what most tests use.
//
// A message is one copy, straight from the sender's tensor to the receiver's, made by whichever side comes
// second; waiting is on condition variables, so that idle ranks cost no processor time. CUDA tensors are
// copied device to device on side streams, ordered by events, also when several ranks share one GPU.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace pptrain::comm {

// The communicators of a world of `size` ranks, by rank, each for one thread.
std::vector<std::unique_ptr<Communicator>> make_thread_world(int size);

// Runs body(rank) on a thread for each of the ranks [first, end), and returns when all have ended. When one
// throws, or its thread cannot be started, calls failed(rank, why), which ends the others' waits. Rethrows
// the first exception; a PeerFailure only if there is no other.
void run_on_threads(int first, int end, const std::function<void(int rank)>& body,
                    const std::function<void(int rank, const std::string& why)>& failed);

// Runs `rank_main` on `size` threads, one per rank, and returns when all have ended. When one throws, the
// others' waits end with PeerFailure at once, and the first failing rank's exception is rethrown here. The
// same if a thread cannot be started.
void run_thread_ranks(int size, const std::function<void(Communicator&)>& rank_main);

}  // namespace pptrain::comm
