// Plain TCP sockets for CPU tensors, where ranks are started without an MPI (torchrun, Slurm without PMI).
//
// At set-up ranks are connected along a tree, so that a failure reaches all; other pairs when they first
// exchange something. One thread per process moves the bytes, so that messages travel while the rank
// computes. A peer that dies closes its connections: all waits end with PeerFailure that names it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "core/base/error.h"
#include "parallel/comm/communicator.h"

namespace pptrain::comm {

// A key-value store at a fixed address, spoken to in the protocol of PyTorch's TCPStore, where ranks leave
// their addresses for each other.
struct Rendezvous {
  std::string host;
  int port = 0;
  bool served_by_launcher = false;  // torchrun's agent has the store; otherwise rank 0 serves it
  std::string prefix =
      "pptrain";               // of all keys: apart from other users of the store and from earlier attempts
  bool one_host = false;       // the launcher says that all ranks are on one host
  std::string host_address{};  // address or interface of this host that others shall use; "": found out
  std::string secret{};        // known to all ranks and to nobody else; "": a key is left in the store
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // for all ranks to have come
  std::function<bool()> stopped = [] { return false; };         // asked while ranks are waited for
};

// Rendezvous::stopped said so.
class StartStopped : public Error {
 public:
  using Error::Error;
};

// Collective over the `size` processes. The last communicator to go sends what is pending and takes leave of
// the peers, unless it goes while an exception unwinds: then they take this rank for dead. Throws Error that
// names the ranks that stayed away or cannot be reached, PeerFailure with the words of a rank that failed
// meanwhile, StartStopped; none of them later than the timeout by more than some tenths of a second.
std::unique_ptr<Communicator> make_tcp_world(int rank, int size, const Rendezvous& rendezvous);

}  // namespace pptrain::comm
