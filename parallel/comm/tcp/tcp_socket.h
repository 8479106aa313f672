// Stream sockets that own their descriptor, with the few calls that the TCP transport makes on them.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

namespace pptrain::comm {

using Deadline = std::chrono::steady_clock::time_point;

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() { close(); }

  int get() const { return descriptor_; }
  bool open() const { return descriptor_ >= 0; }
  void close();

 private:
  int descriptor_ = -1;
};

// A socket that listens on all addresses of this host, at a port of the system's choice.
Socket listen_anywhere(int backlog);
int port_of(const Socket& socket);
// The next connection; a closed Socket when none came until `deadline`.
Socket accept_until(const Socket& listener, Deadline deadline);
// Tries the addresses of `host` until one answers. Throws Error that names host, port and the last reason.
Socket connect_until(const std::string& host, int port, Deadline deadline);
// This host's own address on the way to `host`, as text; "" where that is a loopback address, of no use to
// others.
std::string address_towards(const std::string& host);

// All bytes or an Error; `who` names the peer in it.
void send_all(const Socket& socket, const void* data, size_t bytes, Deadline deadline,
              const std::string& who);
void receive_all(const Socket& socket, void* data, size_t bytes, Deadline deadline, const std::string& who);

// From here on calls do not block; small messages leave at once; a host that vanishes is noticed within half
// a minute.
void make_link(const Socket& socket);

}  // namespace pptrain::comm
