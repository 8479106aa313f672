// Detects the launcher of this process, and makes the world of its ranks.
#pragma once

#include <stdlib.h>

#include <functional>
#include <memory>
#include <string>

#include "parallel/comm/communicator.h"
#include "parallel/comm/tcp/tcp_rendezvous.h"

namespace pptrain::comm {

// threads: no launcher; the caller runs the ranks as threads of this process. pmi: mpiexec of MPICH or one of
// its kin.
enum class LaunchKind { threads, open_mpi, pmi, slurm, torchrun };
const char* name(LaunchKind kind);

struct Launch {
  LaunchKind kind = LaunchKind::threads;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // among the ranks of this host: which GPU to take
  // What the launcher of a Slurm step offers to an MPI library for finding its ranks.
  bool has_pmi = false;
  bool has_pmix = false;
  bool has_agent = false;  // torchrun's agent is the parent, and may start the ranks again
  // The meeting point of ranks without MPI; no host if the environment names none.
  Rendezvous rendezvous{};
};

// The environment; null if a variable is not set. An empty variable counts as not set.
using GetEnv = std::function<const char*(const char*)>;

// The innermost launcher that the environment shows: torchrun (its agent's variables), mpirun of Open MPI,
// mpiexec of MPICH (PMI), srun (a job step of more than one task), variables in torchrun's manner (of more
// than one process), none.
// Throws UsageError for values that make no sense.
Launch detect_launch(const GetEnv& environment = ::getenv);

// Whether the ranks of `launch` meet through the MPI that this program is built with.
bool starts_our_mpi(const Launch& launch);

// The world of `launch`: MPI if the launcher starts an MPI that this program is built with, TCP sockets
// otherwise. Collective over the launched processes. Throws UsageError if neither is possible, Error for
// LaunchKind::threads.
std::unique_ptr<Communicator> make_world(const Launch& launch);

// "node[07-09,12],login" -> "node07": the first host of a Slurm node list; "" for an empty list.
std::string first_host(const std::string& node_list);

}  // namespace pptrain::comm
