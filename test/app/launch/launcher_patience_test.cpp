#include "app/launch/launcher_patience.h"

#include <chrono>
#include <csignal>
#include <map>
#include <string>

#include "core/base/error.h"
#include "core/base/process.h"
#include "test/support/catch.h"

using namespace pptrain;
using std::chrono::milliseconds;

namespace {

app::Patience patience(comm::LaunchKind kind, const std::map<std::string, std::string>& variables = {}) {
  comm::Launch launch;
  launch.kind = kind;
  return app::patience_of(launch, [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

}  // namespace

TEST_CASE("how long each launcher waits") {
  using comm::LaunchKind;
  CHECK_FALSE(patience(LaunchKind::threads, {{"PPTRAIN_STOP_SECONDS", "5"}}).time);
  CHECK(patience(LaunchKind::torchrun).time == milliseconds(30'000));
  CHECK(patience(LaunchKind::slurm).time == milliseconds(30'000));
  CHECK(patience(LaunchKind::slurm, {{"PPTRAIN_STOP_SECONDS", "110"}}).time == milliseconds(110'000));
  CHECK(patience(LaunchKind::slurm).advice.empty());
}

TEST_CASE("what Open MPI leaves depends on its parameter") {
  using comm::LaunchKind;
  const std::string parameter = "OMPI_MCA_odls_base_sigkill_timeout";
  const app::Patience usual = patience(LaunchKind::open_mpi);
  CHECK(usual.time == milliseconds(2000));
  CHECK(usual.notice == SIGCONT);
  CHECK_THAT(usual.advice, test::contains_text("leave 2 s") && test::contains_text("kill -USR1"));
  CHECK(patience(LaunchKind::open_mpi, {{parameter, "5"}}).time == milliseconds(10'000));
  // SIGCONT may mean nothing, and training must not wait 60 s for it; no advice is needed.
  const app::Patience long_one = patience(LaunchKind::open_mpi, {{parameter, "60"}});
  CHECK(long_one.time == milliseconds(60'000));
  CHECK_FALSE(long_one.notice);
  CHECK(long_one.advice.empty());
  CHECK_FALSE(patience(LaunchKind::open_mpi, {{"PPTRAIN_STOP_SECONDS", "120"}}).notice);
  CHECK(patience(LaunchKind::open_mpi, {{"PPTRAIN_STOP_SECONDS", "12"}}).notice == SIGCONT);
}

TEST_CASE("a value that is no time is refused") {
  for (const std::string value : {"soon", "-1", "1e9", "3 s", "nan"}) {
    CAPTURE(value);
    CHECK_THROWS_WITH(patience(comm::LaunchKind::torchrun, {{"PPTRAIN_STOP_SECONDS", value}}),
                      test::contains_text("PPTRAIN_STOP_SECONDS"));
  }
}

TEST_CASE("ends that a restart would repeat are no failures to an agent that restarts") {
  const auto exit_under = [](const char* restarts, int code) {
    return app::final_exit(code, [&](const char* name) {
      return std::string(name) == "TORCHELASTIC_MAX_RESTARTS" ? restarts : nullptr;
    });
  };
  CHECK(exit_under(nullptr, exit_stopped) == exit_stopped);
  CHECK(exit_under("0", exit_usage) == exit_usage);
  CHECK(exit_under("x", exit_usage) == exit_usage);
  CHECK(exit_under("3", exit_usage) == exit_done);
  CHECK(exit_under("3", exit_stopped) == exit_done);
}
