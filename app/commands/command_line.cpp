#include "app/commands/command_line.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>
#include <string>

#include "app/commands/argument_hint.h"
#include "app/commands/commands.h"
#include "app/commands/completion.h"
#include "app/commands/convert.h"
#include "app/commands/live.h"
#include "app/commands/tokenize.h"
#include "app/commands/version.h"
#include "core/base/error.h"

namespace pptrain::app {
namespace {

// What CLI11 says, and how it is written.
std::string describe_refusal(std::string text, int argc, char** argv) {
  if (text.ends_with('\n')) text.pop_back();
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string hint = argument_hint(arguments, text);
  return hint.empty() ? text : text + '\n' + hint;
}

bool names_job(const CLI::App& cli) {
  const auto names = {"--config", "--set", "--world"};
  return std::ranges::any_of(names, [&](const char* name) { return cli.get_option(name)->count() > 0; });
}

}  // namespace

CommandLine::CommandLine(const std::string& commit)
    : cli_(
          "pptrain trains large language models with pipeline parallelism.\n\n"
          "  pptrain --config job.toml                 train, or resume, in one process\n"
          "  mpirun -np 8 pptrain --config job.toml    the same on 8 processes\n") {
  cli_.set_version_flag(
      "--version", [commit] { return version_text(commit); },
      "What the program is made of, and what this machine offers it");
  cli_.require_subcommand(0, 1);
  // Every subcommand, as --help lists them.
  add(add_check, check);
  add(add_plan, plan);
  add(add_eval, eval, /*of_ranks=*/true);
  add(add_generate, generate, /*of_ranks=*/true);
  add(add_status, status);
  add(add_save, save);
  add(add_stop, stop);
  add(add_report, report);
  add(add_verify, verify);
  add(add_convert, run_convert);
  add(add_tokenize, tokenize);
  add(add_config, print_keys);
  add(add_completion, print_completion);
  add(add_train, train, /*of_ranks=*/true);
}

const Command& CommandLine::chosen() const {
  const auto subcommands = cli_.get_subcommands();
  const CLI::App* app = subcommands.empty() ? &cli_ : subcommands.front();
  return *std::ranges::find(commands_, app, &Command::app);
}

int CommandLine::run(int argc, char** argv) {
  try {
    cli_.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out, text;
    const bool asked = cli_.exit(error, out, text) == 0;  // --help, --version
    fmt::print("{}", out.str());
    if (asked) return 0;
    // Most subcommands are no work of several ranks: whoever runs one speaks for itself.
    const std::string refusal = describe_refusal(text.str(), argc, argv);
    if (!chosen().of_ranks) throw UsageError(refusal);
    return refuse(refusal);
  }
  if (!cli_.get_subcommands().empty() && names_job(cli_)) {
    throw UsageError(
        fmt::format("--config, --set and --world come after the subcommand: pptrain {} --config job.toml",
                    chosen().app->get_name()));
  }
  return chosen().run();
}

}  // namespace pptrain::app
