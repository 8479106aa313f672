// Calls on sockets with a deadline.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/net/socket.h"

namespace pptrain::net {

// Calls all addresses (numbers as text) at once, those that fail again and again, and says `greeting` to each
// that answers. The first that says `answer` has the connection. Closed where none has by the deadline;
// `reason` tells of the last that failed.
Socket call_any(const std::vector<std::string>& addresses, int port, const std::string& greeting,
                const std::string& answer, Deadline deadline, std::string& reason);

// All bytes or an Error; `who` names the peer in it.
void send_all(const Socket& socket, const void* data, size_t bytes, Deadline deadline,
              const std::string& who);

}  // namespace pptrain::net
