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
  std::vector<std::string> hosts;  // by rank; with an address if several hosts have one name
  net::Socket previous, next;      // to rank - 1 and rank + 1; closed if `fault` says why
  std::string fault;
};

// Collective over the world, which has two ranks or more. It gives each rank the addresses and one key of
// this run; a connection counts once both sides have proved that they know the key (Handshake). The socket
// that waits for the previous rank is closed when this returns: no rank can join later. It listens on the
// loopback address if all ranks share a host. `patience`: for the connections, once all ranks are there.
//
// own_address: of this host, as a number: heartbeats come in only there. None, or "": at all addresses of the
// host's interfaces. An Error that it throws becomes this rank's fault. own_machine: equal if two ranks reach
// each other by the loopback address; "": as the system says.
Ring make_ring(Communicator& world, std::chrono::milliseconds patience,
               const std::function<std::string()>& own_address = {}, const std::string& own_machine = "");

}  // namespace pptrain::comm
