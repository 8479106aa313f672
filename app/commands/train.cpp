// pptrain --config job.toml
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <optional>
#include <string>

#include "app/commands/commands.h"
#include "app/commands/job_options.h"
#include "app/data/inspection.h"
#include "app/data/token_files.h"
#include "app/launch/launcher_patience.h"
#include "app/launch/run_ranks.h"
#include "app/plan/run_context.h"
#include "app/resolve/load_plan.h"
#include "app/run/run_log.h"
#include "app/train/trainer.h"
#include "core/base/error.h"
#include "core/base/process.h"
#include "core/fault/shutdown.h"
#include "core/kernels/out_of_memory.h"
#include "core/metrics/log_sinks.h"
#include "parallel/comm/bootstrap.h"

namespace pptrain::app {

namespace {

int train_rank(RunContext& context, const fault::Shutdown& shutdown) {
  try {
    return Trainer(context, shutdown).run();
  } catch (const StoppedAtStart& stop) {
    if (context.root()) spdlog::info("{}. Run the same command to start.", stop.what());
    return exit_stopped;
  } catch (const std::exception& error) {
    log_failure(fmt::format("rank {}: {}", context.mesh.rank(), kernels::plain_message(error)));
    throw;
  }
}

}  // namespace

CLI::App* add_train(CLI::App& cli, TrainArguments& arguments) {
  add_job_options(cli, arguments)->required(false);  // not beside a subcommand
  cli.add_option("--color", arguments.color.text,
                 "auto, always or never; auto: on a terminal, unless NO_COLOR is set")
      ->check(CLI::IsMember(config::words_of<metrics::Color>()))
      ->option_text("WHEN")
      ->capture_default_str();
  return &cli;
}

int train(const TrainArguments& arguments) {
  if (arguments.config.empty()) return refuse("--config is required: pptrain --config job.toml (see --help)");
  std::optional<fault::Shutdown> shutdown;
  const auto load = [&] {
    const comm::Launch launch = comm::detect_launch();
    start_log(arguments.color, launch);
    Plan plan =
        load_plan(arguments.config, arguments.set, {.world = world_of(arguments), .inspect = inspect_data});
    // From here on a signal asks for an orderly stop.
    shutdown.emplace(launch.kind != comm::LaunchKind::threads, patience_of(launch).notice);
    if (metrics::terminal_columns()) shutdown->set_last_words("\r\x1b[K");  // over the progress bar
    return plan;
  };
  const auto stopped = [&] { return shutdown && shutdown->requested(); };
  const int code = run_ranks(
      load, [&](RunContext& context) { return train_rank(context, *shutdown); }, stopped);
  if (shutdown) shutdown->keep_until_exit();
  return code;
}

int refuse(const std::string& fault) {
  return run_ranks([&]() -> Plan { throw UsageError(fault); }, {});
}

}  // namespace pptrain::app
