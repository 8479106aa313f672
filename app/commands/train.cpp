// pptrain --config job.toml
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <array>
#include <atomic>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "app/commands/command_line.h"
#include "app/commands/commands.h"
#include "app/commands/job_options.h"
#include "app/data/inspection.h"
#include "app/data/token_files.h"
#include "app/launch/launcher_patience.h"
#include "app/launch/memory_check.h"
#include "app/launch/run_ranks.h"
#include "app/plan/run_context.h"
#include "app/resolve/load_plan.h"
#include "app/run/run_log.h"
#include "app/train/trainer.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/process.h"
#include "core/config/word.h"
#include "core/fault/shutdown.h"
#include "core/kernels/out_of_memory.h"
#include "core/metrics/log_sinks.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/bootstrap.h"

template <>
inline constexpr std::array pptrain::config::words<pptrain::metrics::Color> =
    std::to_array<std::string_view>({"auto", "always", "never"});

namespace pptrain::app {

namespace {

struct TrainArguments : JobArguments {
  config::Word<metrics::Color> color = metrics::Color::automatic;
  std::vector<std::string> log;  // "comm=debug"
  std::string log_dir;
};

// is_short: becomes true if the job does not fit the hosts that are here.
int train_rank(RunContext& context, const fault::Shutdown& shutdown, std::atomic<bool>& is_short) {
  try {
    comm::Communicator& world = context.mesh.world();
    if (!comm::agree(world, find_shortage(world, context.plan, context.device))) {
      is_short = true;
      return exit_usage;
    }
    return train_to_end(context, shutdown);
  } catch (const Shortage&) {
    is_short = true;
    throw;
  } catch (const StoppedAtStart& stop) {
    if (context.root()) spdlog::info("{}. Run the same command to start.", stop.what());
    return exit_stopped;
  } catch (const std::exception& error) {
    log_failure(fmt::format("rank {}: {}", context.mesh.rank(), kernels::plain_message(error)));
    throw;
  }
}

void add_color(CLI::App& app, TrainArguments& arguments) {
  add_option(app, "--color WHEN", arguments.color.text,
             "auto, always or never; auto: on a terminal, unless NO_COLOR is set")
      ->check(CLI::IsMember(config::words_of<metrics::Color>()))
      ->capture_default_str();
}

void add_logs(CLI::App& command, TrainArguments& arguments) {
  CLI::Option* log =
      repeatable(add_option(command, "--log [SUBSYSTEM=]LEVEL", arguments.log,
                            "Prints debug lines of every rank on standard error: comm=debug, or debug for "
                            "all. Subsystems: schedule, comm, data, checkpoint, memory; levels: trace, "
                            "debug, info, warning, error, critical, off (repeatable)"));
  add_option(command, "--log-dir DIR", arguments.log_dir,
             "Writes the lines of --log to DIR/rank_N.log instead")
      ->needs(log);
}

CLI::App* declare_train(CLI::App& cli, TrainArguments& arguments) {
  add_job_options(cli, arguments)->required(false);  // not with a subcommand
  add_color(cli, arguments);
  add_logs(cli, arguments);
  return &cli;
}

CLI::App* declare_resume(CLI::App& cli, TrainArguments& arguments) {
  CLI::App* resume = cli.add_subcommand("resume",
                                        "Continues a run from its newest checkpoint, with the job in its "
                                        "folder");
  add_run_options(*resume, arguments);
  add_color(*resume, arguments);
  add_logs(*resume, arguments);
  return resume;
}

int train(const TrainArguments& arguments) {
  if (arguments.config.empty()) return refuse("--config is required: pptrain --config job.toml (see --help)");
  std::optional<fault::Shutdown> shutdown;
  bool hosts_are_missing = false;
  std::atomic<bool> is_short = false;
  const auto load = [&] {
    const comm::Launch launch = comm::detect_launch();
    start_log(arguments.color, launch);
    turn_on_logs(arguments.log, arguments.log_dir,
                 launch.kind == comm::LaunchKind::threads ? -1 : launch.rank);
    LoadOptions options = options_of_rank(arguments, inspect_data);
    options.fits_pipeline = options.of_processes;
    Plan plan = load_plan(arguments.config, arguments.set, options);
    hosts_are_missing =
        plan.full_ranks > 0 || (options.of_processes && options.world < plan.mesh.world_size());
    // From here on a signal asks for an orderly stop.
    shutdown.emplace(launch.kind != comm::LaunchKind::threads, patience_of(launch).notice);
    return plan;
  };
  const auto stopped = [&] { return shutdown && shutdown->requested(); };
  const int code = run_ranks(
      load, [&](RunContext& context) { return train_rank(context, *shutdown, is_short); }, stopped);
  if (shutdown) shutdown->keep_until_exit();
  // With hosts missing a job may not fit, and does again when they are back: the agent tries once more.
  return code == exit_usage && !(is_short && hosts_are_missing) ? final_exit(code) : code;
}

int resume(const TrainArguments& given) {
  TrainArguments arguments = given;
  try {
    take_run(arguments, nullptr);
  } catch (const UsageError& error) {
    return refuse(error.what());
  }
  // A job that once said "restart" would start over if its run is finished.
  arguments.set.insert(arguments.set.begin(), "checkpoint.resume=auto");
  return train(arguments);
}

}  // namespace

void add_train(CommandLine& line) {
  line.add(declare_train, train, /*of_ranks=*/true);
}

void add_resume(CommandLine& line) {
  line.add(declare_resume, resume, /*of_ranks=*/true);
}

int refuse(const std::string& fault) {
  return run_ranks([&]() -> Plan { throw UsageError(fault); }, {});
}

}  // namespace pptrain::app
