#include "parallel/comm/tcp/tcp_rendezvous.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "core/base/error.h"

namespace pptrain::comm {
namespace {

// A host that can only be the one that it is said on.
bool means_this_host(const std::string& host) {
  return host == "localhost" || host == "ip6-localhost" || net::is_loopback(host);
}

}  // namespace

std::string meeting_host(const Rendezvous& rendezvous) {
  if (rendezvous.served_by_launcher || rendezvous.one_host) return rendezvous.host;
  if (!std::ranges::all_of(net::addresses_of(rendezvous.host), net::is_loopback)) return rendezvous.host;
  if (!rendezvous.host_address.empty()) return net::host_address(rendezvous.host_address);
  return means_this_host(rendezvous.host) ? rendezvous.host : net::address_for_others();
}

net::Socket listen_at_meeting_point(const Rendezvous& rendezvous, const std::string& host,
                                    std::string& address) {
  if (rendezvous.door) return std::move(*rendezvous.door);
  std::vector<std::string> candidates = net::addresses_of(host);
  // A name with addresses of both kinds: the others come to the one that is not this host's alone.
  std::stable_partition(candidates.begin(), candidates.end(),
                        [](const std::string& a) { return !net::is_loopback(a); });
  if (!rendezvous.host_address.empty()) candidates.push_back(net::host_address(rendezvous.host_address));
  for (const std::string& candidate : candidates) {
    int error = 0;
    net::Socket socket = net::listen_at(candidate, rendezvous.port, error);
    address = candidate;
    if (socket.open()) return socket;
    if (error == EADDRNOTAVAIL) continue;
    throw Error(
        fmt::format("rank 0 cannot listen at {} port {} (MASTER_ADDR, MASTER_PORT): {}{}", candidate,
                    rendezvous.port, net::error_text(error),
                    error == EADDRINUSE ? "; another run may be using it: choose another MASTER_PORT" : ""));
  }
  throw Error(fmt::format(
      "rank 0 serves the meeting point, but MASTER_ADDR \"{}\" ({}) is no address of its host: start rank 0 "
      "there, or set PPTRAIN_HOST_ADDRESS to the address or interface of its host that MASTER_ADDR leads to",
      rendezvous.host, candidates.front()));
}

std::string own_address(const Rendezvous& rendezvous, const std::string& meeting_host) {
  if (!rendezvous.host_address.empty()) return net::host_address(rendezvous.host_address);
  const bool here = rendezvous.one_host || means_this_host(meeting_host);
  if (here) return net::can_listen(net::loopback) ? net::loopback : "::1";
  const std::string address = net::address_towards(meeting_host);
  if (address.empty()) throw Error(fmt::format("no route to host \"{}\"", meeting_host));
  return net::is_loopback(address) ? net::address_for_others() : address;
}

}  // namespace pptrain::comm
