// pptrain config
#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>

#include "app/commands/command_line.h"
#include "app/commands/commands.h"
#include "core/config/loader.h"

namespace pptrain::app {

namespace {

struct ConfigArguments {
  bool reference = false;  // which is the default
  bool schema = false;
};

CLI::App* declare_config(CLI::App& cli, ConfigArguments& arguments) {
  CLI::App* config = cli.add_subcommand("config", "Describe every key of a job file");
  CLI::Option* as_toml =
      config->add_flag("--reference", arguments.reference, "As commented TOML (the default)");
  config->add_flag("--schema", arguments.schema, "As JSON schema")->excludes(as_toml);
  return config;
}

int print_keys(const ConfigArguments& arguments) {
  fmt::print("{}", arguments.schema ? config::json_schema() : config::reference_toml());
  return 0;
}

}  // namespace

void add_config(CommandLine& line) {
  line.add(declare_config, print_keys);
}

}  // namespace pptrain::app
