// Options that several subcommands take, each declared once.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "app/commands/commands.h"

namespace pptrain::app {

// --config, --set and --world. Returns --config, which is required.
CLI::Option* add_job_options(CLI::App& command, JobArguments& arguments);

// The option may be repeated, and takes one value each time, as it stands: CLI11 would else take "[a,b]" for
// two.
CLI::Option* repeatable(CLI::Option* option);

// For completion: values to propose, where others are allowed too. Refuses nothing.
CLI::Validator such_as(const std::vector<std::string>& words);

void add_checkpoint(CLI::App& command, std::string& checkpoint);

}  // namespace pptrain::app
