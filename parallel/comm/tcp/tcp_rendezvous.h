// The meeting point of ranks that know only one address: what they know of it, and where it is. Sockets are
// bound to the addresses found here alone.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "core/net/socket.h"

namespace pptrain::comm {

// A key-value store at a fixed address, spoken to in the protocol of PyTorch's TCPStore, where ranks leave
// their addresses for each other.
struct Rendezvous {
  std::string host;
  int port = 0;
  bool served_by_launcher = false;  // a store of torchrun's agent, in which rank 0 leaves its own's address
  std::string prefix = "pptrain";   // of all keys: apart from other users of the store
  bool one_host = false;            // the launcher says that all ranks are on one host
  std::string host_address{};       // address or interface of this host that others shall use; "": found out
  std::shared_ptr<net::Socket> door{};  // of rank 0: it listens there already; null: it makes its own
  std::string secret{};                 // known only to the ranks; "": a key is left in the store
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // for all ranks to have come
  std::function<bool()> stopped = [] { return false; };         // asked while ranks are waited for
};

// The host at which this rank finds the meeting point: rendezvous.host, with one exception. If rank 0 serves
// it and that name means "this host" here, as in Debian's /etc/hosts, it is an address that ranks of other
// hosts reach.
std::string meeting_host(const Rendezvous& rendezvous);
// Rank 0's socket there: bound to the address that the other ranks come to. Throws Error that says what to
// change if that is no address of this host, or the port is taken.
net::Socket listen_at_meeting_point(const Rendezvous& rendezvous, const std::string& host,
                                    std::string& address);
// The address at which other ranks reach this one: rendezvous.host_address (an address, a name or an
// interface) if it is given, loopback if all ranks are on one host, otherwise the address on the way to the
// meeting point. Throws UsageError for a host_address that is none of this host's.
std::string own_address(const Rendezvous& rendezvous, const std::string& meeting_host);

}  // namespace pptrain::comm
