// At which addresses the ranks meet: sockets are bound to these alone.
#pragma once

#include <string>

#include "core/net/socket.h"
#include "parallel/comm/tcp/tcp_communicator.h"

namespace pptrain::comm {

// Where this rank finds the meeting point: the name that rendezvous.host is, except where rank 0 serves it
// and that name means "this host" here, as Debian's /etc/hosts has it, though ranks of other hosts must reach
// it.
std::string meeting_host(const Rendezvous& rendezvous);
// Rank 0's socket there: bound to the address that the other ranks come to. Throws Error that says what to
// change where that is no address of this host, or the port is taken.
net::Socket listen_at_meeting_point(const Rendezvous& rendezvous, const std::string& host,
                                    std::string& address);
// Where the other ranks reach this one: rendezvous.host_address (an address, a name or an interface) where it
// is given, loopback where all ranks are on one host, otherwise the address on the way to the meeting point.
// Throws UsageError for a host_address that is none of this host's.
std::string own_address(const Rendezvous& rendezvous, const std::string& meeting_host);

}  // namespace pptrain::comm
