// How processes that know only one address come to be connected, every pair of them.
#pragma once

#include <vector>

#include "parallel/comm/tcp/tcp_communicator.h"
#include "parallel/comm/tcp/tcp_socket.h"

namespace pptrain::comm {

// links[r]: the connection to rank r, ready for use on both sides; links[rank] is closed. Collective over the
// processes; throws what make_tcp_world throws.
std::vector<Socket> meet(int rank, int size, const Rendezvous& rendezvous);

}  // namespace pptrain::comm
