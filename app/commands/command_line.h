// The arguments of the program: its options, its subcommands, and what runs for them.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pptrain::app {

// --- How to write what somebody most likely meant by arguments that are refused.

// `arguments`: of the command line, without the program's name; `refusal`: CLI11's, which names those that
// are not known. "a job is named so: --config job.toml"; empty where there is nothing to say.
std::string argument_hint(std::span<const std::string> arguments, std::string_view refusal);

// A command of the program, and whoever runs it.
struct Command {
  const CLI::App* app = nullptr;
  std::function<int()> run;
  bool of_ranks = false;  // the ranks of a launch run it together: wrong arguments are said once
};

// The whole tree of options and subcommands. CLI11 refers to the arguments that it fills, so it stays where
// it is made.
class CommandLine {
 public:
  explicit CommandLine(const std::string& commit);  // that --version names
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // Parses and runs. Returns the exit code; throws UsageError for wrong arguments.
  int run(int argc, char** argv);

  const CLI::App& cli() const { return cli_; }
  CLI::App& cli() { return cli_; }

 private:
  // `declare` makes the subcommand, whose parsing fills the arguments with which `run` is called.
  template <class Arguments>
  void add(CLI::App* (*declare)(CLI::App&, Arguments&), int (*run)(const Arguments&), bool of_ranks = false) {
    const auto arguments = std::make_shared<Arguments>();
    const CLI::App* app = declare(cli_, *arguments);
    commands_.push_back({app, [arguments, run] { return run(*arguments); }, of_ranks});
  }
  const Command& chosen() const;

  CLI::App cli_;
  std::vector<Command> commands_;  // the program without a subcommand last
};

}  // namespace pptrain::app
