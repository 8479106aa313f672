// pptrain config
#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "app/commands/command_line.h"
#include "app/commands/commands.h"
#include "app/commands/job_options.h"
#include "core/config/loader.h"
#include "core/config/options.h"

namespace pptrain::app {

namespace {

struct ConfigArguments {
  std::string name;        // of a key or a section; "": all
  bool reference = false;  // the default
  bool schema = false;
};

std::vector<std::string> names_of_keys() {
  std::vector<std::string> names = config::sections();
  for (const config::Option& option : config::options()) names.push_back(option.name());
  return names;
}

CLI::App* declare_config(CLI::App& cli, ConfigArguments& arguments) {
  CLI::App* config = cli.add_subcommand("config", "Describe every key of a job file, or one");
  CLI::Option* name =
      config
          ->add_option("KEY", arguments.name,
                       "A key (train.steps) or a section (train): what it means, its type, range and "
                       "default")
          ->check(such_as(names_of_keys()))
          ->option_text("KEY");
  CLI::Option* as_toml =
      config->add_flag("--reference", arguments.reference, "As commented TOML (the default)");
  config->add_flag("--schema", arguments.schema, "As JSON schema")->excludes(as_toml)->excludes(name);
  return config;
}

int print_keys(const ConfigArguments& arguments) {
  if (!arguments.name.empty()) {
    fmt::print("{}", config::reference_of(arguments.name));
    return 0;
  }
  fmt::print("{}", arguments.schema ? config::json_schema() : config::reference_toml());
  return 0;
}

}  // namespace

void add_config(CommandLine& line) {
  line.add(declare_config, print_keys);
}

}  // namespace pptrain::app
