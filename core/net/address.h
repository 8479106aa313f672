// Addresses of hosts, as numbers in text ("10.0.0.5", "fe80::1%eth0").
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pptrain::net {

inline constexpr const char* loopback = "127.0.0.1";

// The addresses of a host's name. Throws Error where it has none here.
std::vector<std::string> addresses_of(const std::string& host);
// An address of this host alone ("127.0.1.1", "::1")?
bool is_loopback(const std::string& address);

// This host's own address on the way to `host`; "" without a route. Nothing is sent. Throws Error where the
// name is not known here.
std::string address_towards(const std::string& host);
// This host's own address on the way to the world outside (IPv4), or "".
std::string address_of_default_route();
// An address at which other hosts reach this one: the default route's, else any interface's. Throws Error
// without one.
std::string address_for_others();
// All addresses of interfaces that are up, but loopback and link-local IPv6 ones; the default route's first.
std::vector<std::string> addresses_for_others();

// The address that PPTRAIN_HOST_ADDRESS means: an address, a name or an interface. Throws UsageError for one
// that this host does not have.
std::string host_address(const std::string& given);
bool can_listen(const std::string& address);

struct Address {
  std::string host;  // an IPv4 or IPv6 address in numbers
  int port = 0;      // of a server, 0: any free one

  bool is_v6() const { return host.find(':') != std::string::npos; }
  // As people write it: "127.0.0.1:9464", "[::1]:9464".
  std::string text() const { return (is_v6() ? '[' + host + ']' : host) + ':' + std::to_string(port); }
};

// Where a server listens, of "9464" (this machine alone), "localhost:9464", "0.0.0.0:9464" or "[::1]:9464";
// nothing of other texts. Names are not looked up: what an address means must not depend on who answers.
std::optional<Address> parse_listen_address(std::string_view text);

}  // namespace pptrain::net
