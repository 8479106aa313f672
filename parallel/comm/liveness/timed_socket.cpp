#include "parallel/comm/liveness/timed_socket.h"

#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <system_error>
#include <thread>

#include "core/base/error.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;

std::string reason(int error) {
  return std::generic_category().message(error);
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

}  // namespace

Socket connect_until(const std::string& address, int port, Deadline deadline) {
  std::string problem = "no answer";
  do {
    int error = 0;
    Socket socket = start_connecting(address, port, error);
    if (socket.open() && poll_until(socket, POLLOUT, deadline)) {
      error = error_of(socket);
      if (error == 0) return socket;
    }
    if (error != 0) problem = reason(error);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  } while (Clock::now() < deadline);
  throw Error(fmt::format("cannot connect to {} port {}: {}", address, port, problem));
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

}  // namespace pptrain::comm
