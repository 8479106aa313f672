#include "app/commands/command_line.h"
#include "app/commands/commands.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "app/completion/completion.h"

namespace pptrain::app {

namespace {

struct CompletionArguments {
  CLI::App* program = nullptr;  // completes its commands
  std::string shell;            // bash | zsh | fish
};

using Script = std::string (*)(const CommandTree& program, std::span<const Argument> keys);

const std::map<std::string, Script> scripts = {
    {"bash", bash_completion}, {"fish", fish_completion}, {"zsh", zsh_completion}};

CLI::App* declare_completion(CLI::App& cli, CompletionArguments& arguments) {
  arguments.program = &cli;
  CLI::App* app = cli.add_subcommand("completion",
                                     "Print a script that lets a shell complete commands, options and keys");
  app->footer("for example: source <(pptrain completion bash)");
  app->add_option("SHELL", arguments.shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  return app;
}

int print_completion(const CompletionArguments& arguments) {
  fmt::print("{}", completion_script(*arguments.program, arguments.shell));
  return 0;
}

}  // namespace

void add_completion(CommandLine& line) {
  line.add(declare_completion, print_completion);
}

std::string completion_script(CLI::App& program, const std::string& shell) {
  const std::vector<Argument> keys = read_job_keys();
  return scripts.at(shell)(read_command_tree(program), keys);
}

}  // namespace pptrain::app
