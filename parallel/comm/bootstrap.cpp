#include "parallel/comm/bootstrap.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <optional>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "parallel/comm/mpi/mpi_communicator.h"
#include "parallel/comm/tcp/tcp_communicator.h"
#include "parallel/comm/tcp/tcp_handshake.h"

namespace pptrain::comm {
namespace {

class Environment {
 public:
  explicit Environment(const GetEnv& get) : get_(get) {}

  const GetEnv& get() const { return get_; }
  bool has(const char* variable) const { return !text(variable).empty(); }
  std::string text(const char* variable) const {
    const char* value = get_(variable);
    return value == nullptr ? "" : value;
  }
  std::optional<int64_t> number(const char* variable) const {
    const std::string value = text(variable);
    if (value.empty()) return std::nullopt;
    const auto result = to_number<int64_t>(value);
    if (!result || *result < 0) {
      throw UsageError(fmt::format("environment variable {} is \"{}\": it must be a whole number from 0 up",
                                   variable, value));
    }
    return result;
  }

 private:
  const GetEnv& get_;
};

// The variables in which a launcher tells a rank its numbers. `one_host`: the number of ranks on the host;
// for Slurm the number of hosts of the step.
struct Variables {
  LaunchKind kind;
  const char *rank, *size, *local_rank, *one_host;
};
constexpr Variables open_mpi{LaunchKind::open_mpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Variables pmi{LaunchKind::pmi, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr Variables slurm{LaunchKind::slurm, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
                          "SLURM_STEP_NUM_NODES"};
constexpr Variables torchrun{LaunchKind::torchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr std::array launchers{open_mpi, pmi, slurm, torchrun};

// Reads the rank and the sizes. If the launcher does not tell the rank's place on the host, its rank is the
// place.
Launch read(const Environment& env, const Variables& variables) {
  const int64_t rank = env.number(variables.rank).value_or(0);
  const int64_t size = env.number(variables.size).value_or(1);
  constexpr int64_t largest_world = 1 << 20;
  if (size < 1 || size > largest_world) {
    throw UsageError(fmt::format("environment variable {} is {}: a world has 1 to {} ranks", variables.size,
                                 size, largest_world));
  }
  if (rank >= size) {
    throw UsageError(fmt::format("environment variables {} = {} and {} = {}: the rank must be below the size",
                                 variables.rank, rank, variables.size, size));
  }
  const int64_t local_rank = env.number(variables.local_rank).value_or(rank);
  if (local_rank >= size) {
    throw UsageError(
        fmt::format("environment variables {} = {} and {} = {}: a rank's number on its host must be below "
                    "the size",
                    variables.local_rank, local_rank, variables.size, size));
  }
  return {.kind = variables.kind,
          .rank = static_cast<int>(rank),
          .world_size = static_cast<int>(size),
          .local_rank = static_cast<int>(local_rank),
          .has_pmi = env.has("PMI_RANK"),
          .has_pmix = env.has("PMIX_RANK")};
}

// The number of tasks of this process' job step; 0 outside of a step. SLURM_NTASKS can be the allocation's,
// for instance in an interactive step.
int64_t step_tasks(const Environment& env) {
  if (!env.has("SLURM_STEP_ID") || !env.has("SLURM_PROCID")) return 0;
  const auto tasks = env.number("SLURM_STEP_NUM_TASKS");
  return tasks ? *tasks : env.number("SLURM_NTASKS").value_or(0);
}

int port_number(int64_t port, const char* variable) {
  if (port < 1 || port > 65535) {
    throw UsageError(fmt::format("environment variable {} is {}: a port is 1 to 65535", variable, port));
  }
  return static_cast<int>(port);
}

// Below the range that Linux gives out by itself (32768 up), and the same on all ranks of the step.
int port_of_step(const Environment& env) {
  constexpr int64_t first_port = 15000;
  constexpr int64_t ports = 15000;
  const int64_t job = env.number("SLURM_JOB_ID").value_or(0) % ports;
  const int64_t step = env.number("SLURM_STEP_ID").value_or(0) % ports;
  return static_cast<int>(first_port + (job * 16 + step) % ports);
}

std::string host_of_first_rank(const Environment& env) {
  for (const char* list : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
    if (env.has(list)) return first_host(env.text(list));
  }
  return env.text("SLURM_LAUNCH_NODE_IPADDR");
}

Rendezvous find_rendezvous(const Environment& env, const Launch& launch) {
  const LaunchKind kind = launch.kind;
  Rendezvous result{.host = env.text("MASTER_ADDR")};
  const char* one_host = std::ranges::find(launchers, kind, &Variables::kind)->one_host;
  result.one_host = env.number(one_host) == (kind == LaunchKind::slurm ? 1 : launch.world_size);
  result.host_address = env.text("PPTRAIN_HOST_ADDRESS");
  result.secret = read_secret(env.get());
  if (const auto port = env.number("MASTER_PORT")) result.port = port_number(*port, "MASTER_PORT");
  if (kind == LaunchKind::slurm) {
    if (result.host.empty()) result.host = host_of_first_rank(env);
    if (result.port == 0) result.port = port_of_step(env);
    result.prefix = fmt::format("pptrain/{}.{}", env.text("SLURM_JOB_ID"), env.text("SLURM_STEP_ID"));
  } else if (env.has("TORCHELASTIC_RUN_ID")) {
    result.served_by_launcher = env.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
    // Not of the attempt: agents count their own failures alone, so their counts may differ.
    result.prefix = fmt::format("pptrain/{}", env.text("TORCHELASTIC_RUN_ID"));
  }
  return result;
}

// A process that a launcher meant as one of several would train the whole job by itself, as would the others.
// A pod's own RANK or WORLD_SIZE alone, or a world of one, means nothing.
void refuse_half_a_launch(const Environment& env) {
  for (const Variables& variables : {open_mpi, pmi}) {
    if (env.has(variables.rank) == env.has(variables.size)) continue;
    const bool has_rank = env.has(variables.rank);
    throw UsageError(
        fmt::format("environment variable {} is set, but {} is not: unset both to run without a launcher",
                    has_rank ? variables.rank : variables.size, has_rank ? variables.size : variables.rank));
  }
  if (!env.has(torchrun.rank) || !env.has(torchrun.size)) return;
  const Launch launch = read(env, torchrun);
  if (const auto port = env.number("MASTER_PORT")) port_number(*port, "MASTER_PORT");
  if (launch.world_size == 1) return;
  throw UsageError(
      fmt::format("environment variables RANK = {} and WORLD_SIZE = {} say that this is one of several "
                  "processes, but {} is not set: set MASTER_ADDR and MASTER_PORT to a free port on rank 0's "
                  "host, or unset RANK and WORLD_SIZE to run all ranks in this process",
                  launch.rank, launch.world_size, env.has("MASTER_ADDR") ? "MASTER_PORT" : "MASTER_ADDR"));
}

// One pod of a training operator: it runs all ranks of its job, as a Slurm step of one task does. mpirun and
// torchrun's agent with one process stay launchers. The reason: mpirun binds that process to one core, and
// the agent has its own way of stopping it.
Launch alone(const Environment& env) {
  if (const auto port = env.number("MASTER_PORT")) port_number(*port, "MASTER_PORT");
  return {};
}

bool has_torchruns(const Environment& env) {
  return env.has(torchrun.rank) && env.has(torchrun.size) && env.has("MASTER_ADDR") && env.has("MASTER_PORT");
}

// The launch without its rendezvous.
Launch find_launch(const Environment& env) {
  const bool as_torchrun = has_torchruns(env);
  if (as_torchrun && env.has("TORCHELASTIC_RUN_ID")) {
    Launch launch = read(env, torchrun);
    launch.has_agent = true;
    return launch;
  }
  if (env.has(open_mpi.rank) && env.has(open_mpi.size)) return read(env, open_mpi);
  const int64_t tasks = step_tasks(env);
  // mpiexec of MPICH starts its proxies with srun: then PMI's size is not the step's.
  const bool has_pmi = env.has(pmi.rank) && env.has(pmi.size);
  if (has_pmi && (tasks == 0 || env.number(pmi.size) != tasks)) return read(env, pmi);
  if (tasks > 1) {
    const char* size = env.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : slurm.size;
    return read(env, {LaunchKind::slurm, slurm.rank, size, slurm.local_rank, slurm.one_host});
  }
  if (as_torchrun) {
    const Launch launch = read(env, torchrun);
    return launch.world_size > 1 ? launch : alone(env);
  }
  refuse_half_a_launch(env);
  return {};
}

std::string built_with() {
  return mpi_flavor() == MpiFlavor::none ? "is built without MPI"
                                         : fmt::format("is built with {}", mpi_version());
}

}  // namespace

bool starts_our_mpi(const Launch& launch) {
  const bool by_slurm = launch.kind == LaunchKind::slurm;
  switch (mpi_flavor()) {
    case MpiFlavor::open_mpi:
      return launch.kind == LaunchKind::open_mpi || (by_slurm && launch.has_pmix);
    case MpiFlavor::mpich:
      return launch.kind == LaunchKind::pmi || (by_slurm && launch.has_pmi);
    default:
      return false;
  }
}

const char* name(LaunchKind kind) {
  constexpr std::array names{"no launcher", "mpirun of Open MPI", "mpiexec of MPICH (PMI)", "srun of Slurm",
                             "torchrun"};  // in the order of LaunchKind
  return names.at(static_cast<size_t>(kind));
}

std::string first_host(const std::string& node_list) {
  std::string host;
  for (size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    if (node_list[i] != '[') {
      host += node_list[i];
      continue;
    }
    // Of a bracket, the first number is taken: up to '-', ',' or the end.
    const size_t end = node_list.find(']', i);
    if (end == std::string::npos)
      throw UsageError(fmt::format("Slurm node list \"{}\": a ']' is missing", node_list));
    host += node_list.substr(i + 1, node_list.find_first_of("-,]", i + 1) - i - 1);
    i = end;
  }
  return host;
}

Launch detect_launch(const GetEnv& environment) {
  const Environment env(environment);
  Launch launch = find_launch(env);
  if (launch.kind != LaunchKind::threads) launch.rendezvous = find_rendezvous(env, launch);
  return launch;
}

std::unique_ptr<Communicator> make_world(const Launch& launch) {
  if (launch.kind == LaunchKind::threads) {
    throw Error(
        "no launcher was found: the ranks are threads of this process, and run_thread_ranks makes their "
        "world");
  }
  log_of(Subsystem::comm)
      .info("started by {}: rank {} of {}, {} on its host; over {}", name(launch.kind), launch.rank,
            launch.world_size, launch.local_rank, starts_our_mpi(launch) ? mpi_version() : "TCP");
  if (starts_our_mpi(launch)) return make_mpi_world();
  if (launch.rendezvous.host.empty() || launch.rendezvous.port == 0) {
    throw UsageError(
        fmt::format("this process was started by {}, but pptrain {}: use the launcher of that MPI (or "
                    "torchrun, or srun), build pptrain with the launcher's MPI, or set MASTER_ADDR and "
                    "MASTER_PORT to a free port on rank 0's host to use TCP sockets",
                    name(launch.kind), built_with()));
  }
  return make_tcp_world(launch.rank, launch.world_size, launch.rendezvous);
}

}  // namespace pptrain::comm
