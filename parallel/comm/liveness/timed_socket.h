// The few calls with a deadline that the ring's set-up makes on its sockets.
#pragma once

#include <cstddef>
#include <string>

#include "parallel/comm/tcp/tcp_socket.h"

namespace pptrain::comm {

// Tries the address, a number as text, until it answers. Throws Error that names address, port and the last
// reason.
Socket connect_until(const std::string& address, int port, Deadline deadline);

// All bytes or an Error; `who` names the peer in it.
void send_all(const Socket& socket, const void* data, size_t bytes, Deadline deadline,
              const std::string& who);
void receive_all(const Socket& socket, void* data, size_t bytes, Deadline deadline, const std::string& who);

}  // namespace pptrain::comm
