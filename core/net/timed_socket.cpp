#include "core/net/timed_socket.h"

#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <system_error>
#include <vector>

#include "core/base/error.h"

namespace pptrain::net {
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

// One of several calls that are made at once.
struct Call {
  std::string address;
  Socket socket{};
  Deadline until{};  // of this attempt; without a socket: when the next one begins
  size_t said = 0;   // bytes of the greeting
  std::string heard{};
};

constexpr std::chrono::milliseconds pause_after_failure{50};

enum class Step { waits, failed, answered };

Step say(Call& call, const std::string& greeting, std::string& problem) {
  if (const int error = error_of(call.socket); error != 0) {
    problem = reason(error);
    return Step::failed;
  }
  const ssize_t sent = send(call.socket.get(), greeting.data() + call.said, greeting.size() - call.said,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return Step::waits;
  if (sent < 0) problem = reason(errno);
  if (sent > 0) call.said += static_cast<size_t>(sent);
  return sent < 0 ? Step::failed : Step::waits;
}

Step hear(Call& call, const std::string& answer, std::string& problem) {
  std::string bytes(answer.size() - call.heard.size(), '\0');
  const ssize_t got = recv(call.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Step::waits;
  problem = got < 0 ? reason(errno) : got == 0 ? "closed the connection" : "is somebody else";
  if (got <= 0) return Step::failed;
  call.heard.append(bytes, 0, static_cast<size_t>(got));
  if (!answer.starts_with(call.heard)) return Step::failed;
  return call.heard.size() == answer.size() ? Step::answered : Step::waits;
}

// Begins the call anew where its time is over.
void renew(Call& call, int port, Deadline now, std::string& problem) {
  constexpr std::chrono::seconds patience{2};
  if (now < call.until) return;
  if (call.socket.open()) problem = "is silent";
  int error = 0;
  call.socket = start_connecting(call.address, port, error);
  if (!call.socket.open()) problem = reason(error);
  call.until = now + (call.socket.open() ? std::chrono::milliseconds(patience) : pause_after_failure);
  call.said = 0;
  call.heard.clear();
}

}  // namespace

Socket call_any(const std::vector<std::string>& addresses, int port, const std::string& greeting,
                const std::string& answer, Deadline deadline, std::string& reason) {
  constexpr int look_every_ms = 20;
  std::vector<Call> calls;
  for (const std::string& address : addresses) calls.push_back({.address = address});
  std::vector<pollfd> entries(calls.size());
  while (Clock::now() < deadline) {
    for (size_t i = 0; i < calls.size(); ++i) {
      Call& call = calls[i];
      std::string problem;
      renew(call, port, Clock::now(), problem);
      if (!problem.empty()) reason = call.address + ": " + problem;
      const bool says = call.said < greeting.size();
      entries[i] = {call.socket.get(), static_cast<short>(says ? POLLOUT : POLLIN), 0};
    }
    poll(entries.data(), entries.size(), look_every_ms);
    for (size_t i = 0; i < calls.size(); ++i) {
      Call& call = calls[i];
      if (!call.socket.open() || entries[i].revents == 0) continue;
      std::string problem;
      const bool says = call.said < greeting.size();
      const Step step = says ? say(call, greeting, problem) : hear(call, answer, problem);
      if (step == Step::answered) return std::move(call.socket);
      if (step == Step::waits) continue;
      reason = call.address + ": " + problem;
      call.socket.close();
      call.until = Clock::now() + pause_after_failure;
    }
  }
  return {};
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

}  // namespace pptrain::net
