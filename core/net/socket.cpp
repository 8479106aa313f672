#include "core/net/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <spdlog/fmt/fmt.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>

#include "core/base/error.h"

namespace pptrain::net {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

void set_option(const Socket& socket, int level, int option, int value) {
  // Options tune; a system without one of them still carries the bytes.
  static_cast<void>(setsockopt(socket.get(), level, option, &value, sizeof(value)));
}

// Null where `address` is no address.
AddressList resolve_address(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &list) != 0) list = nullptr;
  return {list, &freeaddrinfo};
}

Socket new_socket(int family) {
  return Socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

}  // namespace

Socket listen_at(const std::string& address, int port, int& error) {
  const AddressList list = resolve_address(address, port);
  error = EADDRNOTAVAIL;
  if (!list) return {};
  Socket socket = new_socket(list->ai_family);
  // A port whose last user's connections still fade away is free.
  if (socket.open()) set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  if (!socket.open() || bind(socket.get(), list->ai_addr, list->ai_addrlen) != 0 ||
      listen(socket.get(), SOMAXCONN) != 0) {
    error = errno;
    return {};
  }
  error = 0;
  return socket;
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
    throw Error(fmt::format("getsockname failed: {}", std::generic_category().message(errno)));
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
  const AddressList list = resolve_address(address, port);
  error = EADDRNOTAVAIL;
  if (!list) return {};
  Socket socket = new_socket(list->ai_family);
  if (!socket.open() ||
      (connect(socket.get(), list->ai_addr, list->ai_addrlen) != 0 && errno != EINPROGRESS)) {
    error = errno;
    return {};
  }
  error = 0;
  return socket;
}

int error_of(const Socket& socket) {
  int error = 0;
  socklen_t size = sizeof(error);
  return getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

std::string peer_address(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char host[NI_MAXHOST] = {};
  if (getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof(host), nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    return "an unknown address";
  }
  return host;
}

void make_link(const Socket& socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

}  // namespace pptrain::net
