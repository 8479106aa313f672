// pptrain verify
#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "app/commands/command_line.h"
#include "app/commands/commands.h"
#include "core/base/error.h"
#include "core/base/printable.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::app {

namespace fs = std::filesystem;

namespace {

CLI::App* declare_verify(CLI::App& cli, std::string& checkpoint_dir) {
  CLI::App* app = cli.add_subcommand("verify", "Check every byte of a checkpoint");
  app->add_option("DIR", checkpoint_dir, "A checkpoint, a folder of checkpoints or a run's folder")
      ->required();
  return app;
}

int verify(const std::string& checkpoint_dir) {
  if (!fs::is_directory(checkpoint_dir))
    throw UsageError(fmt::format("verify: {} is not a folder", checkpoint_dir));
  const fs::path of_run = fs::path(checkpoint_dir) / "checkpoints";
  std::vector<fs::path> folders;
  for (const auto& [step, folder] :
       checkpoint::list_step_folders(fs::is_directory(of_run) ? of_run : fs::path(checkpoint_dir))) {
    folders.insert(folders.begin(), folder);  // ascending steps
  }
  if (folders.empty()) folders.emplace_back(checkpoint_dir);
  bool sound = true;
  for (const fs::path& folder : folders) {
    const std::vector<std::string> problems = checkpoint::verify(folder);
    if (problems.empty()) {
      fmt::print("{}: sound\n", printable(folder.string()));
      continue;
    }
    std::error_code unknown;
    if (!fs::exists(folder, unknown) && !unknown) {
      fmt::print("{}: removed by its run meanwhile\n", printable(folder.string()));
      continue;
    }
    sound = false;
    for (const std::string& problem : problems)
      fmt::print("{}\n", printable(fmt::format("{}: {}", folder.string(), problem)));
  }
  return sound ? 0 : 1;
}

}  // namespace

void add_verify(CommandLine& line) {
  line.add(declare_verify, verify);
}

}  // namespace pptrain::app
