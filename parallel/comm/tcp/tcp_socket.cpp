#include "parallel/comm/tcp/tcp_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "core/base/error.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;
using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

std::string reason(int error) {
  return std::generic_category().message(error);
}

void set_option(const Socket& socket, int level, int option, int value) {
  // Options tune; a system without one of them still carries the bytes.
  static_cast<void>(setsockopt(socket.get(), level, option, &value, sizeof(value)));
}

AddressList resolve(const std::string& host, int port, int type) {
  addrinfo hints{};
  hints.ai_socktype = type;
  addrinfo* list = nullptr;
  const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (code != 0) throw Error(fmt::format("host \"{}\" is not known here: {}", host, gai_strerror(code)));
  return {list, &freeaddrinfo};
}

// True when `events` came before `deadline`.
bool poll_until(const Socket& socket, short events, Deadline deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd entry{socket.get(), events, 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw Error(fmt::format("poll failed: {}", reason(errno)));
    if (Clock::now() >= deadline) return false;
  }
}

Socket new_socket(int family, int type) {
  return Socket(::socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// A connected socket, or a closed one with the reason in `error`.
Socket connect_address(const addrinfo& address, Deadline deadline, std::string& error) {
  Socket socket = new_socket(address.ai_family, SOCK_STREAM);
  if (!socket.open()) {
    error = reason(errno);
    return {};
  }
  if (connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return socket;
  int code = errno;
  if (code == EINPROGRESS) {
    if (!poll_until(socket, POLLOUT, deadline)) {
      error = "no answer";
      return {};
    }
    socklen_t size = sizeof(code);
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &code, &size);
    if (code == 0) return socket;
  }
  error = reason(code);
  return {};
}

}  // namespace

void Socket::close() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

Socket listen_anywhere(int backlog) {
  Socket socket = new_socket(AF_INET6, SOCK_STREAM);
  int bound = -1;
  if (socket.open()) {
    set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    bound = bind(socket.get(), reinterpret_cast<const sockaddr*>(&any), sizeof(any));
  }
  if (bound != 0) {  // a system without IPv6
    socket = new_socket(AF_INET, SOCK_STREAM);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    bound = bind(socket.get(), reinterpret_cast<const sockaddr*>(&any), sizeof(any));
  }
  if (bound != 0 || listen(socket.get(), backlog) != 0) {
    throw Error(fmt::format("cannot listen for other ranks: {}", reason(errno)));
  }
  return socket;
}

int port_of(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw Error(fmt::format("getsockname failed: {}", reason(errno)));
  }
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

Socket accept_until(const Socket& listener, Deadline deadline) {
  while (poll_until(listener, POLLIN, deadline)) {
    Socket socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.open()) return socket;
    if (errno == EMFILE || errno == ENFILE) {
      throw Error(
          "too many open files: every pair of ranks has a connection; raise the limit with ulimit -n");
    }
  }
  return {};
}

Socket connect_until(const std::string& host, int port, Deadline deadline) {
  const AddressList addresses = resolve(host, port, SOCK_STREAM);
  std::string error = "no address";
  do {
    for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
      // An address that swallows packets leaves time for the next one.
      Socket socket = connect_address(*a, std::min(deadline, Clock::now() + std::chrono::seconds(10)), error);
      if (socket.open()) return socket;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  } while (Clock::now() < deadline);
  throw Error(
      fmt::format("cannot connect to {} port {}: {}; is a firewall between the hosts?", host, port, error));
}

std::string address_towards(const std::string& host) {
  const AddressList addresses = resolve(host, 9, SOCK_DGRAM);
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    // Connecting a datagram socket sends nothing: it only looks up the route.
    const Socket socket = new_socket(a->ai_family, SOCK_DGRAM);
    sockaddr_storage own{};
    socklen_t size = sizeof(own);
    if (!socket.open() || connect(socket.get(), a->ai_addr, a->ai_addrlen) != 0 ||
        getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) {
      continue;
    }
    char text[NI_MAXHOST] = {};
    if (getnameinfo(reinterpret_cast<const sockaddr*>(&own), size, text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) != 0) {
      continue;
    }
    const std::string address(text);
    return address.starts_with("127.") || address == "::1" ? "" : address;
  }
  throw Error(fmt::format("no route to host \"{}\"", host));
}

void send_all(const Socket& socket, const void* data, size_t bytes, Deadline deadline,
              const std::string& who) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    if (!poll_until(socket, POLLOUT, deadline)) throw Error(fmt::format("{} takes no data", who));
    const ssize_t sent = send(socket.get(), next, bytes, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (sent < 0) throw Error(fmt::format("{} closed the connection: {}", who, reason(errno)));
    next += sent;
    bytes -= static_cast<size_t>(sent);
  }
}

void receive_all(const Socket& socket, void* data, size_t bytes, Deadline deadline, const std::string& who) {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    if (!poll_until(socket, POLLIN, deadline)) throw Error(fmt::format("{} is silent", who));
    const ssize_t got = recv(socket.get(), next, bytes, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0)
      throw Error(fmt::format("{} closed the connection{}", who, got < 0 ? ": " + reason(errno) : ""));
    next += got;
    bytes -= static_cast<size_t>(got);
  }
}

void make_link(const Socket& socket) {
  const int flags = fcntl(socket.get(), F_GETFL);
  if (flags < 0 || fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    throw Error(fmt::format("fcntl failed: {}", reason(errno)));
  }
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 25'000);
}

}  // namespace pptrain::comm
