// Options that several subcommands take, each declared once.
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "app/commands/commands.h"

namespace pptrain::app {

// --config, --set and --world. Returns --config, which is required.
CLI::Option* add_job_options(CLI::App& command, JobArguments& arguments);

void add_checkpoint(CLI::App& command, std::string& checkpoint);

}  // namespace pptrain::app
