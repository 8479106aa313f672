// pptrain config
#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>

#include "app/commands/commands.h"
#include "core/config/loader.h"

namespace pptrain::app {

CLI::App* add_config(CLI::App& cli, ConfigArguments& arguments) {
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

}  // namespace pptrain::app
