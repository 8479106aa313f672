#include "app/commands/job_options.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdint>

namespace pptrain::app {

CLI::Option* add_job_options(CLI::App& command, JobArguments& arguments) {
  CLI::Option* config = command.add_option("--config", arguments.config, "The job, a TOML file")
                            ->required()
                            ->option_text("JOB.toml");
  repeatable(command.add_option("--set", arguments.set,
                                "Overrides a key of the job: section.key=value (repeatable)"))
      ->option_text("KEY=VALUE");
  command
      .add_option("--world", arguments.world,
                  "Ranks of the job, which distributed.dp_shard = -1 fills; a launcher says it too")
      ->option_text("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  return config;
}

CLI::Option* repeatable(CLI::Option* option) {
  return option->expected(1)->take_all()->allow_extra_args(false);
}

CLI::Validator such_as(const std::vector<std::string>& words) {
  return {[](std::string&) { return std::string(); }, fmt::format("{{{}}}", fmt::join(words, ","))};
}

void add_checkpoint(CLI::App& command, std::string& checkpoint) {
  command
      .add_option("--checkpoint", checkpoint,
                  "Weights: a checkpoint, a run's folder or a Hugging Face directory; default: the newest "
                  "checkpoint in run.dir, else model.hf_dir with model.init = \"hf\"")
      ->option_text("DIR");
}

}  // namespace pptrain::app
