#include "parallel/comm/bootstrap.h"

#include <map>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/mpi/mpi_communicator.h"
#include "test/support/catch.h"

namespace pptrain::comm {
namespace {

using pptrain::test::contains_text;
using Variables = std::map<std::string, std::string>;

Launch detect(const Variables& variables) {
  return detect_launch([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

void require(const Launch& launch, LaunchKind kind, int rank, int world_size, int local_rank) {
  INFO(name(launch.kind));
  REQUIRE(launch.kind == kind);
  REQUIRE(launch.rank == rank);
  REQUIRE(launch.world_size == world_size);
  REQUIRE(launch.local_rank == local_rank);
}

const Variables srun{{"SLURM_JOB_ID", "4711"},
                     {"SLURM_STEP_ID", "2"},
                     {"SLURM_PROCID", "5"},
                     {"SLURM_NTASKS", "16"},
                     {"SLURM_LOCALID", "1"},
                     {"SLURM_STEP_NUM_TASKS", "8"},
                     {"SLURM_STEP_NODELIST", "gpu[07-08]"}};

Variables plus(Variables variables, const Variables& more) {
  variables.insert(more.begin(), more.end());
  return variables;
}

TEST_CASE("no launcher: threads") {
  require(detect({}), LaunchKind::threads, 0, 1, 0);
  require(detect({{"RANK", "1"}, {"WORLD_SIZE", ""}}), LaunchKind::threads, 0, 1, 0);
  // A Slurm allocation alone is not a step; a shell in a step of one task is no launch either.
  require(detect({{"SLURM_JOB_ID", "1"}, {"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}), LaunchKind::threads,
          0, 1, 0);
  require(detect({{"SLURM_STEP_ID", "4294967290"},
                  {"SLURM_NTASKS", "8"},
                  {"SLURM_STEP_NUM_TASKS", "1"},
                  {"SLURM_PROCID", "0"},
                  {"PMI_RANK", "0"},
                  {"PMI_SIZE", "1"}}),
          LaunchKind::threads, 0, 1, 0);
  REQUIRE_THROWS_AS(make_world(Launch{}), Error);
}

TEST_CASE("Open MPI, MPICH, torchrun") {
  const Variables ompi{
      {"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};
  require(detect(ompi), LaunchKind::open_mpi, 3, 8, 1);
  require(detect({{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "0"}}), LaunchKind::pmi, 2, 4, 0);
  const Variables pods{{"RANK", "6"},
                       {"WORLD_SIZE", "8"},
                       {"LOCAL_RANK", "2"},
                       {"MASTER_ADDR", "node1"},
                       {"MASTER_PORT", "29500"}};
  const Launch torchrun = detect(pods);
  require(torchrun, LaunchKind::torchrun, 6, 8, 2);
  REQUIRE(torchrun.rendezvous.host == "node1");
  REQUIRE(torchrun.rendezvous.port == 29500);
  REQUIRE_FALSE(torchrun.rendezvous.served_by_launcher);
  // mpirun in a container that has Slurm's variables too.
  require(detect(plus(ompi, pods)), LaunchKind::open_mpi, 3, 8, 1);
}

TEST_CASE("torchrun's agent keeps a store for the run, whatever each agent has counted or started it") {
  const Launch launch = detect(plus(srun, {{"RANK", "6"},
                                           {"WORLD_SIZE", "8"},
                                           {"LOCAL_RANK", "2"},
                                           {"MASTER_ADDR", "node1"},
                                           {"MASTER_PORT", "29500"},
                                           {"TORCHELASTIC_RUN_ID", "abc"},
                                           {"TORCHELASTIC_RESTART_COUNT", "3"},
                                           {"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  require(launch, LaunchKind::torchrun, 6, 8, 2);
  REQUIRE(launch.rendezvous.served_by_launcher);
  REQUIRE(launch.rendezvous.prefix == "pptrain/abc");
  REQUIRE(launch.has_agent);
}

TEST_CASE("a Slurm step") {
  const Launch launch = detect(srun);
  require(launch, LaunchKind::slurm, 5, 8, 1);
  REQUIRE(launch.rendezvous.host == "gpu07");
  REQUIRE(launch.rendezvous.port == 15000 + 4711 * 16 % 15000 + 2);
  REQUIRE_FALSE(launch.has_pmix);
  const Launch named =
      detect(plus(srun, {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "1234"}, {"PMIX_RANK", "5"}}));
  REQUIRE(named.rendezvous.host == "head");
  REQUIRE(named.rendezvous.port == 1234);
  REQUIRE(named.has_pmix);
  // srun with PMI-2 is still srun; mpiexec of MPICH, which starts its proxies with srun, is not.
  require(detect(plus(srun, {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}})), LaunchKind::slurm, 5, 8, 1);
  require(detect(plus(srun, {{"PMI_RANK", "9"}, {"PMI_SIZE", "64"}, {"MPI_LOCALRANKID", "3"}})),
          LaunchKind::pmi, 9, 64, 3);
}

TEST_CASE("the first host of a Slurm node list") {
  REQUIRE(first_host("a[1-3,5]") == "a1");
  REQUIRE(first_host("node[007-010],login") == "node007");
  REQUIRE(first_host("one,two") == "one");
  REQUIRE(first_host("r[1-2]n[3,5]-ib") == "r1n3-ib");
  REQUIRE(first_host("c[12]") == "c12");
  REQUIRE(first_host("") == "");
  REQUIRE_THROWS_AS(first_host("a[1-3"), UsageError);
}

TEST_CASE("variables that make no sense are named") {
  REQUIRE_THROWS_WITH(detect({{"OMPI_COMM_WORLD_RANK", "x"}, {"OMPI_COMM_WORLD_SIZE", "8"}}),
                      contains_text("OMPI_COMM_WORLD_RANK"));
  REQUIRE_THROWS_WITH(detect({{"PMI_RANK", "4"}, {"PMI_SIZE", "4"}}), contains_text("PMI_RANK = 4"));
  REQUIRE_THROWS_WITH(
      detect({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}}),
      contains_text("MASTER_PORT"));
}

TEST_CASE("where TCP ranks listen and what they know is in the environment") {
  const Variables pods{{"RANK", "1"},
                       {"WORLD_SIZE", "4"},
                       {"LOCAL_RANK", "1"},
                       {"MASTER_ADDR", "node1"},
                       {"MASTER_PORT", "29500"},
                       {"PPTRAIN_HOST_ADDRESS", "ib0"},
                       {"PPTRAIN_SECRET", "0123456789abcdef"}};
  const Launch launch = detect(pods);
  REQUIRE(launch.rendezvous.host_address == "ib0");
  REQUIRE(launch.rendezvous.secret == "0123456789abcdef");
  REQUIRE_FALSE(launch.rendezvous.one_host);
  REQUIRE_FALSE(detect(plus(pods, {{"LOCAL_WORLD_SIZE", "2"}})).rendezvous.one_host);
  REQUIRE(detect(plus(pods, {{"LOCAL_WORLD_SIZE", "4"}})).rendezvous.one_host);
  REQUIRE_FALSE(detect(srun).rendezvous.one_host);
  REQUIRE(detect(plus(srun, {{"SLURM_STEP_NUM_NODES", "1"}})).rendezvous.one_host);
  REQUIRE_THROWS_WITH(detect({{"RANK", "1"},
                              {"WORLD_SIZE", "4"},
                              {"MASTER_ADDR", "node1"},
                              {"MASTER_PORT", "29500"},
                              {"PPTRAIN_SECRET", "1234"}}),
                      contains_text("can be guessed"));
}

TEST_CASE("no value of a launcher's variables is taken for what it is not") {
  struct Case {
    Variables variables;
    const char* named;
  };
  const Variables ompi{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  const Variables pods{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}};
  const auto but = [](Variables variables, const char* name, const char* value) {
    variables[name] = value;
    return variables;
  };
  std::vector<Case> cases;
  for (const char* number : {"x", "-1", "1x", " 1", "+1", "1.0", "0x1", "99999999999999999999"}) {
    cases.push_back({but(ompi, "OMPI_COMM_WORLD_RANK", number), "OMPI_COMM_WORLD_RANK"});
    cases.push_back({but(ompi, "OMPI_COMM_WORLD_SIZE", number), "OMPI_COMM_WORLD_SIZE"});
    cases.push_back({but(ompi, "OMPI_COMM_WORLD_LOCAL_RANK", number), "OMPI_COMM_WORLD_LOCAL_RANK"});
    cases.push_back({but(pods, "RANK", number), "RANK"});
    cases.push_back({but(pods, "WORLD_SIZE", number), "WORLD_SIZE"});
    cases.push_back({but(pods, "MASTER_PORT", number), "MASTER_PORT"});
    cases.push_back({but(srun, "SLURM_PROCID", number), "SLURM_PROCID"});
    cases.push_back({but(srun, "SLURM_STEP_NUM_TASKS", number), "SLURM_STEP_NUM_TASKS"});
    cases.push_back({but(srun, "SLURM_LOCALID", number), "SLURM_LOCALID"});
    cases.push_back({but(srun, "SLURM_JOB_ID", number), "SLURM_JOB_ID"});
    cases.push_back({{{"PMI_RANK", number}, {"PMI_SIZE", "4"}}, "PMI_RANK"});
    cases.push_back({{{"RANK", number}, {"WORLD_SIZE", "2"}}, "RANK"});
  }
  for (const char* port : {"0", "65536", "70000"}) {
    cases.push_back({but(pods, "MASTER_PORT", port), "a port is 1 to 65535"});
    cases.push_back({but(ompi, "MASTER_PORT", port), "MASTER_PORT"});
    cases.push_back({{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", port}}, "MASTER_PORT"});
  }
  for (const char* size : {"0", "1048577", "9000000000000000000"})
    cases.push_back({but(pods, "WORLD_SIZE", size), "a world has 1 to 1048576 ranks"});
  cases.push_back({but(pods, "RANK", "2"), "the rank must be below the size"});
  cases.push_back({but(pods, "LOCAL_RANK", "4294967296"), "LOCAL_RANK = 4294967296"});
  cases.push_back({but(srun, "SLURM_PROCID", "8"), "SLURM_PROCID = 8"});
  for (const Case& c : cases) {
    std::string given;
    for (const auto& [name, value] : c.variables) given += name + "=" + value + " ";
    INFO(given);
    CHECK_THROWS_AS(detect(c.variables), UsageError);
    CHECK_THROWS_WITH(detect(c.variables), contains_text(c.named));
  }
}

TEST_CASE("a process that is one of several never trains alone") {
  CHECK_THROWS_WITH(detect({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), contains_text("MASTER_ADDR is not set"));
  CHECK_THROWS_WITH(detect({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}),
                    contains_text("MASTER_PORT is not set"));
  CHECK_THROWS_WITH(detect({{"OMPI_COMM_WORLD_RANK", "0"}}), contains_text("OMPI_COMM_WORLD_SIZE is not"));
  CHECK_THROWS_WITH(detect({{"PMI_SIZE", "2"}}), contains_text("PMI_RANK is not"));
  // Variables for one process, or as pods have them: nothing was launched.
  require(detect({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), LaunchKind::threads, 0, 1, 0);
  const Variables pod{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}};
  require(detect(pod), LaunchKind::threads, 0, 1, 0);
  require(detect(plus(pod, {{"TORCHELASTIC_RUN_ID", "abc"}})), LaunchKind::torchrun, 0, 1, 0);
  require(detect({{"WORLD_SIZE", "8"}}), LaunchKind::threads, 0, 1, 0);
  require(detect({{"RANK", "x"}}), LaunchKind::threads, 0, 1, 0);
}

TEST_CASE("an MPI that this program is not built with needs a meeting point") {
  Launch launch;
  launch.kind = mpi_flavor() == MpiFlavor::mpich ? LaunchKind::open_mpi : LaunchKind::pmi;
  launch.world_size = 2;
  REQUIRE_THROWS_AS(make_world(launch), UsageError);
  REQUIRE_THROWS_WITH(make_world(launch), contains_text("MASTER_ADDR and MASTER_PORT"));
}

TEST_CASE("the outermost port, world and place on a host are taken, and the next place is not") {
  const auto with = [](const char* name, const char* value) {
    Variables variables{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}};
    variables[name] = value;
    return variables;
  };
  CHECK(detect(with("MASTER_PORT", "1")).rendezvous.port == 1);
  CHECK(detect(with("MASTER_PORT", "65535")).rendezvous.port == 65535);
  CHECK(detect(with("WORLD_SIZE", "1048576")).world_size == 1048576);
  CHECK(detect(with("LOCAL_RANK", "1")).local_rank == 1);
  CHECK_THROWS_WITH(detect(with("LOCAL_RANK", "2")), contains_text("LOCAL_RANK = 2"));
}

}  // namespace
}  // namespace pptrain::comm
