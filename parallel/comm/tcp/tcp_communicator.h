// Plain TCP sockets for CPU tensors, for ranks that are started without an MPI (torchrun, Slurm without PMI).
//
// At set-up ranks are connected along a tree, so that a failure reaches all; other pairs when they first
// exchange something. One thread per process moves the bytes, so that messages travel while the rank
// computes. A peer that dies closes its connections: all waits end with PeerFailure that names it.
#pragma once

#include <memory>

#include "parallel/comm/communicator.h"
#include "parallel/comm/tcp/tcp_neighbours.h"
#include "parallel/comm/tcp/tcp_rendezvous.h"

namespace pptrain::comm {

// Collective over the `size` processes. The last communicator to go sends what is pending and takes leave of
// the peers, unless it goes while an exception unwinds: then they take this rank for dead. Throws Error that
// names the ranks that stayed away or cannot be reached, PeerFailure with the words of a rank that failed
// meanwhile, StoppedAtStart; all of them some tenths of a second after the timeout at most.
//
// neighbours: of the ranks of this process, if there are several, each of which makes its world in a thread
// of its own; null: this rank is the process's only one.
std::unique_ptr<Communicator> make_tcp_world(int rank, int size, const Rendezvous& rendezvous,
                                             std::shared_ptr<TcpNeighbours> neighbours = nullptr);

}  // namespace pptrain::comm
