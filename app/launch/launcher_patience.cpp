#include "app/launch/launcher_patience.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <fstream>
#include <string_view>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/base/text.h"
#include "core/base/timing.h"

namespace pptrain::app {

namespace {

using std::chrono::milliseconds;

constexpr const char* own_variable = "PPTRAIN_STOP_SECONDS";

// A variable's seconds; nothing if it is not set.
std::optional<double> seconds_of(const comm::GetEnv& environment, const char* variable) {
  const char* text = environment(variable);
  if (text == nullptr || *text == '\0') return std::nullopt;
  const std::string_view value = text;
  const auto seconds = to_number<double>(value);
  if (!seconds || !(*seconds >= 0 && *seconds <= 1e6)) {
    throw UsageError(
        fmt::format("environment variable {} is \"{}\": it must be seconds, 0 or more", variable, value));
  }
  return seconds;
}

milliseconds to_milliseconds(double seconds) {
  return milliseconds(std::llround(seconds * 1000));
}

// "kill -USR1 4711" if the parent is mpirun itself; on other hosts the parent is a daemon.
std::string usr1_to_mpirun() {
  std::string name;
  std::getline(std::ifstream(fmt::format("/proc/{}/comm", getppid())), name);
  constexpr std::array<std::string_view, 3> mpirun_names{"mpirun", "orterun", "mpiexec"};
  const bool is_mpirun = std::ranges::find(mpirun_names, name) != mpirun_names.end();
  return is_mpirun ? fmt::format("kill -USR1 {}", getppid()) : "kill -USR1 on mpirun";
}

constexpr double longest_pause = 10;  // s of training, if the SIGCONT meant nothing

// Observed with Open MPI 4.1.4: at SIGINT or SIGTERM mpirun sends SIGCONT to the ranks, SIGTERM after one
// second, SIGKILL after one more; both pauses are odls_base_sigkill_timeout. It also passes on a SIGCONT sent
// to it.
Patience of_open_mpi(const comm::GetEnv& environment) {
  const double pause = seconds_of(environment, "OMPI_MCA_odls_base_sigkill_timeout").value_or(1);
  if (pause > longest_pause) return {.time = to_milliseconds(pause), .notice = std::nullopt, .advice = {}};
  return {.time = to_milliseconds(2 * pause), .notice = SIGCONT, .advice = {}};
}

}  // namespace

Patience patience_of(const comm::Launch& launch, const comm::GetEnv& environment) {
  constexpr milliseconds agents_patience = std::chrono::seconds(30);  // torchrun; Slurm's default KillWait
  if (launch.kind == comm::LaunchKind::threads) return {};
  const bool has_agent = launch.kind == comm::LaunchKind::slurm || launch.kind == comm::LaunchKind::torchrun;
  Patience patience;
  if (has_agent) patience.time = agents_patience;
  if (launch.kind == comm::LaunchKind::open_mpi) patience = of_open_mpi(environment);
  if (const auto own = seconds_of(environment, own_variable)) {
    patience.time = to_milliseconds(*own);
    if (*own > 2 * longest_pause) patience.notice.reset();  // a notice holds training for half of the time
  }
  if (launch.kind == comm::LaunchKind::open_mpi && *patience.time < agents_patience) {
    patience.advice = fmt::format(
        "Ctrl-C, and SIGTERM to mpirun, leave {:.3g} s: a longer step is given up then and the last finished "
        "one saved. To finish the step: {}",
        in_seconds(*patience.time), usr1_to_mpirun());
  }
  return patience;
}

int final_exit(int code, const comm::GetEnv& environment) {
  const char* const restarts = environment("TORCHELASTIC_MAX_RESTARTS");
  return restarts != nullptr && to_number<int64_t>(restarts).value_or(0) > 0 ? exit_done : code;
}

}  // namespace pptrain::app
