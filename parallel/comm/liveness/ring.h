// The ring of connections that heartbeats travel on: each rank has one to the next and one to the previous.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "core/net/socket.h"
#include "parallel/comm/communicator.h"

namespace pptrain::comm {

struct Ring {
  std::vector<std::string> hosts;  // by rank; with an address where several hosts have one name
  net::Socket previous, next;      // to rank - 1 and rank + 1; closed where `fault` says why
  std::string fault;
};

// Where this rank is.
struct RingPlace {
  // Of this host, as a number: heartbeats come in there alone. None, or "": at all addresses of the host's
  // interfaces. It may throw Error, which is this rank's fault.
  std::function<std::string()> address = {};
  // Equal where two ranks reach each other by the loopback address; "": as the system says.
  std::string machine = {};
};

// Collective over the world, which has two ranks or more. It tells each rank the addresses and one secret of
// this run; a connection counts once both sides have shown the secret and their ranks. The socket that waits
// for the previous rank is closed when this returns: nobody can join later. It listens on the loopback
// address where all ranks share a host. `patience`: for the connections, once all ranks are there.
Ring make_ring(Communicator& world, std::chrono::milliseconds patience, const RingPlace& place = {});

}  // namespace pptrain::comm
