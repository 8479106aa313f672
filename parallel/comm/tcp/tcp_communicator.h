// Plain TCP sockets for CPU tensors, for ranks that are started without an MPI (torchrun, Slurm without PMI).
//
// At set-up ranks are connected along a tree, so that a failure reaches all; other pairs when they first
// exchange something. One thread per process moves the bytes, so that messages travel while the rank
// computes. A peer that dies closes its connections: all waits end with PeerFailure that names it.
#pragma once

#include <memory>

#include "parallel/comm/communicator.h"
#include "parallel/comm/tcp/tcp_rendezvous.h"

namespace pptrain::comm {

// Collective over the `size` processes. The last communicator to go sends what is pending and takes leave of
// the peers, unless it goes while an exception unwinds: then they take this rank for dead. Throws Error that
// names the ranks that stayed away or cannot be reached, PeerFailure with the words of a rank that failed
// meanwhile, StoppedAtStart; all of them some tenths of a second after the timeout at most.
std::unique_ptr<Communicator> make_tcp_world(int rank, int size, const Rendezvous& rendezvous);

}  // namespace pptrain::comm
