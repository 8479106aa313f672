// Connects ranks that know only the meeting point, along a tree; each gets the addresses of all. Further
// pairs of ranks are connected when they first exchange something (TcpEngine).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/net/socket.h"
#include "parallel/comm/tcp/tcp_contacts.h"
#include "parallel/comm/tcp/tcp_handshake.h"
#include "parallel/comm/tcp/tcp_rendezvous.h"

namespace pptrain::comm {

// The key of a rank's address in the store.
std::string address_key(int rank);

// What a rank has when all have come.
struct Met {
  RunIdentity me;
  // With ranks that are ahead of this one and call it; none: a world of one.
  std::unique_ptr<TcpContacts> contacts;
  std::vector<net::Address> addresses;  // by rank
  std::map<int, net::Socket> links;     // by rank: to its neighbours in the tree, at least
};

// Collective over the processes; throws what make_tcp_world throws.
Met meet(int rank, int size, const Rendezvous& rendezvous);

}  // namespace pptrain::comm
