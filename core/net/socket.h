// Stream sockets: calls that do not block.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "core/base/file_descriptor.h"

namespace pptrain::net {

using Deadline = std::chrono::steady_clock::time_point;

using Socket = FileDescriptor;

// Of the calls below none blocks; addresses are numbers as text ("10.0.0.5", "fe80::1%eth0").

// A socket that listens at this address alone. Port 0: one of the system's choice. A closed one where that
// cannot be, with the error's number in `error`.
Socket listen_at(const std::string& address, int port, int& error);
// The same at all addresses of this host, and a port of the system's choice.
Socket listen_everywhere(int& error);
int port_of(const Socket& socket);
// The next connection; a closed Socket where none waits, or, with `error`, where it cannot be had.
Socket accept_now(const Socket& listener, int& error);
// A connection under way: it is there, or has failed, when the socket can be written to. A closed Socket with
// `error` where it has failed already.
Socket start_connecting(const std::string& address, int port, int& error);
// The error's number of a connection that was under way; 0: it is there.
int error_of(const Socket& socket);
// The address of the other end, for messages.
std::string peer_address(const Socket& socket);

// Small messages leave at once; a host that vanishes while nothing is on its way to it is noticed within half
// a minute.
void make_link(const Socket& socket);

}  // namespace pptrain::net
