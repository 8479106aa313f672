// The arguments of the program: its options, its subcommands, and the functions that run for them.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pptrain::app {

// --- Hints for refused arguments: how to write what was most likely meant.

// `arguments`: the command line without the program's name; `refusal`: CLI11's message, which names unknown
// arguments. Returns a hint such as "a job is named so: --config job.toml", or "".
std::string argument_hint(std::span<const std::string> arguments, std::string_view refusal);

// The whole tree of options and subcommands. CLI11 refers to the arguments that it fills, so it cannot be
// moved.
class CommandLine {
 public:
  explicit CommandLine(const std::string& commit);  // named by --version
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // Parses and runs. Returns the exit code; throws UsageError for wrong arguments.
  int run(int argc, char** argv);

  const CLI::App& cli() const { return cli_; }
  CLI::App& cli() { return cli_; }

  // `declare` makes the subcommand; its parsing fills the arguments for `run`. of_ranks: the ranks of a
  // launch run it together, so only one of them prints what is wrong with the arguments.
  template <class Arguments>
  void add(CLI::App* (*declare)(CLI::App&, Arguments&), int (*run)(const Arguments&), bool of_ranks = false) {
    const auto arguments = std::make_shared<Arguments>();
    const CLI::App* app = declare(cli_, *arguments);
    add(
        app, [arguments, run] { return run(*arguments); }, of_ranks);
  }

 private:
  struct Command;

  void add(const CLI::App* app, std::function<int()> run, bool of_ranks);
  const Command& chosen() const;

  CLI::App cli_;
  std::vector<Command> commands_;  // the program without a subcommand last
};

}  // namespace pptrain::app
