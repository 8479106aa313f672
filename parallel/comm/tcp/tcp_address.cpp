#include "parallel/comm/tcp/tcp_address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <spdlog/fmt/fmt.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>

#include "core/base/error.h"

namespace pptrain::comm {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;
constexpr const char* loopback = "127.0.0.1";

AddressList resolve(const std::string& host, int type) {
  addrinfo hints{};
  hints.ai_socktype = type;
  addrinfo* list = nullptr;
  const int code = getaddrinfo(host.c_str(), "9", &hints, &list);
  if (code != 0) throw Error(fmt::format("host \"{}\" is not known here: {}", host, gai_strerror(code)));
  return {list, &freeaddrinfo};
}

std::string text_of(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST] = {};
  const int code = getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return code == 0 ? text : "";
}

// This host's own address on the way to `host`; "" where there is no way.
std::string address_towards(const std::string& host) {
  const AddressList addresses = resolve(host, SOCK_DGRAM);
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    // Connecting a datagram socket sends nothing: it only looks up the route.
    const Socket socket(::socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t size = sizeof(own);
    if (socket.open() && connect(socket.get(), a->ai_addr, a->ai_addrlen) == 0 &&
        getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0) {
      return text_of(reinterpret_cast<const sockaddr*>(&own), size);
    }
  }
  return "";
}

// The first address of interface `name`, IPv4 before IPv6; of any but loopback where `name` is empty.
std::string address_of_interface(const std::string& name) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != family || (i->ifa_flags & IFF_UP) == 0)
        continue;
      if (name.empty() ? (i->ifa_flags & IFF_LOOPBACK) != 0 : name != i->ifa_name) continue;
      return text_of(i->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    }
  }
  return "";
}

// Where packets to the world leave this host (addresses kept for documentation, RFC 5737 and 3849).
std::string address_towards_others() {
  for (const char* elsewhere : {"192.0.2.1", "2001:db8::1"}) {
    const std::string address = address_towards(elsewhere);
    if (!address.empty() && !is_loopback(address)) return address;
  }
  if (std::string address = address_of_interface(""); !address.empty()) return address;
  throw Error(
      "this host has no address that other hosts could reach: set PPTRAIN_HOST_ADDRESS to one, or to the "
      "name "
      "of an interface");
}

bool can_listen(const std::string& address) {
  int error = 0;
  return listen_at(address, 0, error).open();
}

std::string host_address(const std::string& given) {
  std::string address = address_of_interface(given);
  if (address.empty()) {
    try {
      address = addresses_of(given).front();
    } catch (const Error&) {
      address.clear();
    }
  }
  if (address.empty() || address == "0.0.0.0" || address == "::" || !can_listen(address)) {
    throw UsageError(fmt::format(
        "environment variable PPTRAIN_HOST_ADDRESS is \"{}\": this host has no such address or interface",
        given));
  }
  return address;
}

// A host that can only be the one that it is said on.
bool means_this_host(const std::string& host) {
  return host == "localhost" || host == "ip6-localhost" || is_loopback(host);
}

bool all_loopback(const std::vector<std::string>& addresses) {
  return std::ranges::all_of(addresses, is_loopback);
}

}  // namespace

std::vector<std::string> addresses_of(const std::string& host) {
  const AddressList list = resolve(host, SOCK_STREAM);
  std::vector<std::string> addresses;
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
    if (std::string text = text_of(a->ai_addr, a->ai_addrlen); !text.empty()) addresses.push_back(text);
  }
  if (addresses.empty()) throw Error(fmt::format("host \"{}\" has no address here", host));
  return addresses;
}

bool is_loopback(const std::string& address) {
  return address == "::1" ||
         (address.starts_with("127.") && address.find_first_not_of("0123456789.") == std::string::npos);
}

std::string meeting_host(const Rendezvous& rendezvous) {
  if (rendezvous.served_by_launcher || rendezvous.one_host) return rendezvous.host;
  if (!all_loopback(addresses_of(rendezvous.host))) return rendezvous.host;
  if (!rendezvous.host_address.empty()) return host_address(rendezvous.host_address);
  return means_this_host(rendezvous.host) ? rendezvous.host : address_towards_others();
}

Socket listen_at_meeting_point(const Rendezvous& rendezvous, const std::string& host, std::string& address) {
  std::vector<std::string> candidates = addresses_of(host);
  // A name with addresses of both kinds: the others come to the one that is not this host's alone.
  std::stable_partition(candidates.begin(), candidates.end(),
                        [](const std::string& a) { return !is_loopback(a); });
  if (!rendezvous.host_address.empty()) candidates.push_back(host_address(rendezvous.host_address));
  for (const std::string& candidate : candidates) {
    int error = 0;
    Socket socket = listen_at(candidate, rendezvous.port, error);
    address = candidate;
    if (socket.open()) return socket;
    if (error == EADDRNOTAVAIL) continue;
    throw Error(
        fmt::format("rank 0 cannot listen at {} port {} (MASTER_ADDR, MASTER_PORT): {}{}", candidate,
                    rendezvous.port, std::generic_category().message(error),
                    error == EADDRINUSE ? "; another run may be using it: choose another MASTER_PORT" : ""));
  }
  throw Error(fmt::format(
      "rank 0 serves the meeting point, but MASTER_ADDR \"{}\" ({}) is no address of its host: start rank 0 "
      "there, or set PPTRAIN_HOST_ADDRESS to the address or interface of its host that MASTER_ADDR leads to",
      rendezvous.host, candidates.front()));
}

std::string own_address(const Rendezvous& rendezvous, const std::string& meeting_host) {
  if (!rendezvous.host_address.empty()) return host_address(rendezvous.host_address);
  const bool here = rendezvous.one_host || means_this_host(meeting_host);
  if (here) return can_listen(loopback) ? loopback : "::1";
  const std::string address = address_towards(meeting_host);
  if (address.empty()) throw Error(fmt::format("no route to host \"{}\"", meeting_host));
  return is_loopback(address) ? address_towards_others() : address;
}

}  // namespace pptrain::comm
