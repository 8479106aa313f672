// pptrain fork
#include "app/run/fork.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "app/commands/command_line.h"
#include "app/commands/commands.h"
#include "app/commands/job_options.h"
#include "core/base/process.h"
#include "core/base/text.h"

namespace pptrain::app {

namespace {

struct ForkArguments {
  std::string run, to;          // folders
  std::optional<int64_t> step;  // nothing: the newest
};

CLI::App* declare_fork(CLI::App& cli, ForkArguments& arguments) {
  CLI::App* fork = cli.add_subcommand("fork", "Makes a new run that begins at another run's checkpoint");
  fork->add_option("RUN", arguments.run, "The other run's folder, which stays as it is")->required();
  add_option(*fork, "--step STEP", arguments.step, "The checkpoint's step; default: the newest")
      ->check(CLI::NonNegativeNumber);
  add_option(*fork, "--to DIR", arguments.to, "The new run's folder, with its job.toml")->required();
  return fork;
}

int fork(const ForkArguments& arguments) {
  log_to_stderr();
  const Fork fork = fork_run(arguments.run, arguments.step, arguments.to);
  fmt::print("{}\n",
             printable(fmt::format("{} begins at step {} of {}; to go on: pptrain --config {}", arguments.to,
                                   fork.step, arguments.run, in_shell_quotes(arguments.to + "/job.toml"))));
  return 0;
}

}  // namespace

void add_fork(CommandLine& line) {
  line.add(declare_fork, fork);
}

}  // namespace pptrain::app
