// pptrain verify
#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "app/commands/command_line.h"
#include "app/commands/commands.h"
#include "app/run/run_status.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::app {

namespace fs = std::filesystem;

namespace {

CLI::App* declare_verify(CLI::App& cli, std::string& dir) {
  CLI::App* app = cli.add_subcommand("verify", "Check every byte of checkpoints");
  app->add_option("DIR", dir, "A checkpoint, a folder of checkpoints, a run's folder or a folder of runs")
      ->required();
  return app;
}

// In ascending steps; the folder itself if it holds none.
std::vector<fs::path> checkpoints_in(const fs::path& folder) {
  const fs::path of_run = folder / "checkpoints";
  std::vector<fs::path> found;
  for (const auto& [step, checkpoint] :
       checkpoint::list_step_folders(fs::is_directory(of_run) ? of_run : folder))
    found.insert(found.begin(), checkpoint);
  if (found.empty()) found.push_back(folder);
  return found;
}

bool print_problems(const fs::path& checkpoint) {
  const std::vector<std::string> problems = checkpoint::verify(checkpoint);
  std::error_code unknown;
  if (!problems.empty() && !fs::exists(checkpoint, unknown) && !unknown) {
    fmt::print("{}: removed by its run meanwhile\n", printable(checkpoint.string()));
    return true;
  }
  if (problems.empty()) fmt::print("{}: sound\n", printable(checkpoint.string()));
  for (const std::string& problem : problems)
    fmt::print("{}\n", printable(fmt::format("{}: {}", checkpoint.string(), problem)));
  return problems.empty();
}

int verify(const std::string& dir) {
  if (!fs::is_directory(dir)) throw UsageError(fmt::format("verify: {} is not a folder", dir));
  bool sound = true;
  for (const fs::path& run : runs_of(dir)) {
    for (const fs::path& checkpoint : checkpoints_in(run)) {
      if (checkpoint == run && is_run_dir(run)) {
        fmt::print("{}: no checkpoint\n", printable(run.string()));  // not an error for a young run
      } else {
        sound = print_problems(checkpoint) && sound;
      }
    }
  }
  return sound ? 0 : 1;
}

}  // namespace

void add_verify(CommandLine& line) {
  line.add(declare_verify, verify);
}

}  // namespace pptrain::app
