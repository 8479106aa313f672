// Which addresses of a host the ranks use: sockets are bound to these alone.
#pragma once

#include <string>
#include <vector>

#include "parallel/comm/tcp/tcp_communicator.h"
#include "parallel/comm/tcp/tcp_socket.h"

namespace pptrain::comm {

// The addresses of a host's name, as numbers. Throws Error where it has none here.
std::vector<std::string> addresses_of(const std::string& host);
// `address` as number: of this host alone ("127.0.1.1", "::1").
bool is_loopback(const std::string& address);

// Where this rank finds the meeting point: the name that rendezvous.host is, except where rank 0 serves it
// and that name means "this host" here, as Debian's /etc/hosts has it, though ranks of other hosts must reach
// it.
std::string meeting_host(const Rendezvous& rendezvous);
// Rank 0's socket there: bound to the address that the other ranks come to. Throws Error that says what to
// change where that is no address of this host, or the port is taken.
Socket listen_at_meeting_point(const Rendezvous& rendezvous, const std::string& host, std::string& address);
// Where the other ranks reach this one: rendezvous.host_address (an address, a name or an interface) where it
// is given, loopback where all ranks are on one host, otherwise the address on the way to the meeting point.
// Throws UsageError for a host_address that is none of this host's.
std::string own_address(const Rendezvous& rendezvous, const std::string& meeting_host);

}  // namespace pptrain::comm
