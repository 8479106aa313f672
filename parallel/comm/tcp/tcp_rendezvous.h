// How processes that know only one address come to know all of them.
#pragma once

#include "parallel/comm/tcp/tcp_communicator.h"
#include "parallel/comm/tcp/tcp_meeting.h"

namespace pptrain::comm {

// Collective over the processes; throws what make_tcp_world throws.
Met meet(int rank, int size, const Rendezvous& rendezvous);

}  // namespace pptrain::comm
