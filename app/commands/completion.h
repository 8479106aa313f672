// pptrain completion
#pragma once

#include <CLI/App.hpp>
#include <string>

namespace pptrain::app {

struct CompletionArguments {
  CLI::App* program = nullptr;  // whose commands are completed
  std::string shell;            // bash | zsh | fish
};

CLI::App* add_completion(CLI::App& cli, CompletionArguments& arguments);
// `program`: whose commands are completed; `shell`: bash, zsh or fish.
std::string completion_script(CLI::App& program, const std::string& shell);
int print_completion(const CompletionArguments& arguments);

}  // namespace pptrain::app
