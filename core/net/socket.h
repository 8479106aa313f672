// Stream sockets, whose calls do not block, and addresses of hosts: numbers in text ("10.0.0.5",
// "fe80::1%eth0").
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "core/base/file_descriptor.h"

namespace pptrain::net {

using Deadline = std::chrono::steady_clock::time_point;

using Socket = FileDescriptor;

// A socket that listens only at this address. Port 0: the system chooses one. If that fails, a closed one,
// with the error's number in `error`.
Socket listen_at(const std::string& address, int port, int& error);
// The same at all addresses of this host, and a port of the system's choice.
Socket listen_everywhere(int& error);
int port_of(const Socket& socket);
// The next connection. A closed Socket if none waits, or, with `error`, if accepting fails.
Socket accept_now(const Socket& listener, int& error);
// A connection under way: it is there, or has failed, when the socket can be written to. A closed Socket with
// `error` if it has failed already.
Socket start_connecting(const std::string& address, int port, int& error);
// The error's number of a connection that was under way; 0: it is there.
int error_of(const Socket& socket);
// The system's words for an error's number.
std::string error_text(int error);
// The address of the other end, for messages.
std::string peer_address(const Socket& socket);

// Small messages leave at once; a host that vanishes while nothing is on its way to it is noticed within half
// a minute.
void make_link(const Socket& socket);

// --- Addresses

inline constexpr const char* loopback = "127.0.0.1";

// The addresses of a host's name. Throws Error if it has none here.
std::vector<std::string> addresses_of(const std::string& host);
// An address of this host alone ("127.0.1.1", "::1")?
bool is_loopback(const std::string& address);

// This host's own address on the way to `host`; "" without a route. Nothing is sent. Throws Error if the name
// is not known here.
std::string address_towards(const std::string& host);
// An address at which other hosts reach this one: the default route's, else any interface's. Throws Error
// without one.
std::string address_for_others();
// All addresses of interfaces that are up, but loopback and link-local IPv6 ones; the default route's first.
std::vector<std::string> addresses_for_others();

// The address that PPTRAIN_HOST_ADDRESS means: an address, a name or an interface. Throws UsageError for one
// that this host does not have.
std::string host_address(const std::string& given);
bool can_listen(const std::string& address);
// The interface that has this address of this host; "" if none but the loopback one has it.
std::string interface_of(const std::string& address);

struct Address {
  std::string host;  // an IPv4 or IPv6 address in numbers
  int port = 0;
};

}  // namespace pptrain::net
