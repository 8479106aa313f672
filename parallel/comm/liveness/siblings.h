// The other processes of this launch on this host.
#pragma once

#include <sys/types.h>

#include <vector>

#include "parallel/comm/bootstrap.h"

namespace pptrain::comm {

struct Sibling {
  int rank = 0;
  pid_t pid = 0;
  bool stopped = false;  // by SIGSTOP, a terminal or a debugger
};

// Children of this process' parent (mpirun's daemon, srun's, torchrun's agent, a shell) that run this program
// with a rank of `launch` in their environment; without this process itself. Empty where /proc does not tell.
std::vector<Sibling> find_siblings(const Launch& launch);

}  // namespace pptrain::comm
