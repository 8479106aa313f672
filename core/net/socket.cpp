#include "core/net/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <spdlog/fmt/fmt.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "core/base/error.h"

namespace pptrain::net {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

void set_option(const Socket& socket, int level, int option, int value) {
  // Options tune; a system without one of them still carries the bytes.
  static_cast<void>(setsockopt(socket.get(), level, option, &value, sizeof(value)));
}

// Null if `address` is no address.
AddressList resolve_address(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &list) != 0) list = nullptr;
  return {list, &freeaddrinfo};
}

AddressList look_up(const std::string& host, int type) {
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

Socket new_socket(int family) {
  return Socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// A socket that `use` has taken to the address; if that failed, a closed one, with the error's number.
template <typename Use>
Socket socket_at(const std::string& address, int port, int& error, Use&& use) {
  const AddressList list = resolve_address(address, port);
  error = EADDRNOTAVAIL;
  if (!list) return {};
  Socket socket = new_socket(list->ai_family);
  const bool made = socket.open() && use(socket, *list);
  error = made ? 0 : errno;
  return made ? std::move(socket) : Socket();
}

}  // namespace

Socket listen_at(const std::string& address, int port, int& error) {
  return socket_at(address, port, error, [](const Socket& socket, const addrinfo& at) {
    // A port whose last user's connections still fade away is free.
    set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
    return bind(socket.get(), at.ai_addr, at.ai_addrlen) == 0 && listen(socket.get(), SOMAXCONN) == 0;
  });
}

Socket listen_everywhere(int& error) {
  Socket socket = new_socket(AF_INET6);
  const int both = 0;
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  if (socket.open() && setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &both, sizeof(both)) == 0 &&
      bind(socket.get(), reinterpret_cast<const sockaddr*>(&any), sizeof(any)) == 0 &&
      listen(socket.get(), SOMAXCONN) == 0) {
    error = 0;
    return socket;
  }
  return listen_at("0.0.0.0", 0, error);
}

int port_of(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw Error(fmt::format("getsockname failed: {}", error_text(errno)));
  }
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

Socket accept_now(const Socket& listener, int& error) {
  Socket socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const bool nobody = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
  error = socket.open() || nobody ? 0 : errno;
  return socket;
}

Socket start_connecting(const std::string& address, int port, int& error) {
  return socket_at(address, port, error, [](const Socket& socket, const addrinfo& at) {
    return connect(socket.get(), at.ai_addr, at.ai_addrlen) == 0 || errno == EINPROGRESS;
  });
}

int error_of(const Socket& socket) {
  int error = 0;
  socklen_t size = sizeof(error);
  return getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

std::string error_text(int error) {
  return std::generic_category().message(error);
}

std::string peer_address(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  std::string text;
  if (getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0)
    text = text_of(reinterpret_cast<const sockaddr*>(&address), size);
  return text.empty() ? "an unknown address" : text;
}

void make_link(const Socket& socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

// --- addresses

namespace {

// Addresses kept for documentation (RFC 5737 and 3849): the way to them is the default route.
constexpr const char* elsewhere_v4 = "192.0.2.1";
constexpr const char* elsewhere_v6 = "2001:db8::1";

struct Interface {
  std::string name, address;
  int family = AF_UNSPEC;
  bool loopback = false;
};

// Interfaces that are up, one entry per address.
std::vector<Interface> interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    found.push_back({i->ifa_name, text_of(i->ifa_addr, size), family, (i->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return found;
}

// The first address of interface `name`, IPv4 before IPv6; of any but loopback if `name` is empty.
std::string address_of_interface(const std::string& name) {
  const std::vector<Interface> all = interfaces();
  for (const int family : {AF_INET, AF_INET6}) {
    for (const Interface& i : all) {
      if (i.family == family && (name.empty() ? !i.loopback : i.name == name)) return i.address;
    }
  }
  return "";
}

}  // namespace

std::vector<std::string> addresses_of(const std::string& host) {
  const AddressList list = look_up(host, SOCK_STREAM);
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

std::string address_towards(const std::string& host) {
  const AddressList addresses = look_up(host, SOCK_DGRAM);
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

std::string address_for_others() {
  for (const char* elsewhere : {elsewhere_v4, elsewhere_v6}) {
    const std::string address = address_towards(elsewhere);
    if (!address.empty() && !is_loopback(address)) return address;
  }
  if (std::string address = address_of_interface(""); !address.empty()) return address;
  throw Error(
      "this host has no address that other hosts could reach: set PPTRAIN_HOST_ADDRESS to one, or to the "
      "name of an interface");
}

std::vector<std::string> addresses_for_others() {
  std::vector<std::string> found;
  if (std::string first = address_towards(elsewhere_v4); !first.empty()) found.push_back(std::move(first));
  for (const Interface& i : interfaces()) {
    const bool usable = !i.loopback && !i.address.empty() && !i.address.starts_with("fe80");
    if (usable && std::ranges::find(found, i.address) == found.end()) found.push_back(i.address);
  }
  return found;
}

bool can_listen(const std::string& address) {
  int error = 0;
  return listen_at(address, 0, error).open();
}

std::string interface_of(const std::string& address) {
  for (const Interface& i : interfaces()) {
    if (i.address == address && !i.loopback) return i.name;
  }
  return "";
}

std::string host_address(const std::string& given) {
  std::string address = address_of_interface(given);
  if (address.empty()) {
    try {
      address = addresses_of(given).front();
    } catch (const Error&) {  // it stays empty
    }
  }
  if (address.empty() || address == "0.0.0.0" || address == "::" || !can_listen(address)) {
    throw UsageError(fmt::format(
        "environment variable PPTRAIN_HOST_ADDRESS is \"{}\": this host has no such address or interface",
        given));
  }
  return address;
}

}  // namespace pptrain::net
