#include "app/commands/job_options.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "app/plan/run_files.h"
#include "core/base/error.h"
#include "core/base/process.h"
#include "core/base/text.h"
#include "core/config/field.h"
#include "core/io/paths.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/comm/bootstrap.h"

namespace pptrain::app {

namespace fs = std::filesystem;

namespace {

constexpr int64_t most_ranks = 1 << 20;  // as for distributed.pp and the other axes

fs::path without_last_slash(const fs::path& folder) {
  return folder.has_filename() ? folder : folder.parent_path();  // "runs/first/"
}

bool is_checkpoint_of_run(const std::string& given) {
  const fs::path folder = without_last_slash(given);
  return folder.parent_path().filename() == "checkpoints" && io::is_there(folder / checkpoint::manifest_name);
}

// The run's folder, given itself, its checkpoints or one of them.
fs::path run_folder(fs::path folder) {
  folder = without_last_slash(folder);
  if (folder.parent_path().filename() == "checkpoints") folder = folder.parent_path();
  if (folder.filename() == "checkpoints") folder = folder.parent_path();
  return folder.empty() ? "." : folder;
}

}  // namespace

CLI::Option* add_job_options(CLI::App& app, JobArguments& arguments) {
  CLI::Option* config =
      add_option(app, "--config JOB.toml", arguments.config, "The job, a TOML file")->required();
  repeatable(add_option(app, "--set KEY=VALUE", arguments.set,
                        "Overrides a key of the job: section.key=value (repeatable)"));
  add_option(app, "--world N", arguments.world,
             "World size, used to resolve distributed.dp_shard = -1. Set by the launcher if there is one")
      ->check(CLI::Range(int64_t{1}, most_ranks));
  return config;
}

void add_run_options(CLI::App& command, JobArguments& arguments) {
  add_job_options(command, arguments)->required(false);
  command.add_option("RUN", arguments.run, "A run's folder: its job and its newest checkpoint");
}

void take_run(JobArguments& arguments, std::string* checkpoint) {
  if (is_checkpoint_of_run(arguments.run)) {
    const std::string run = in_shell_quotes(run_folder(arguments.run).string());
    if (checkpoint == nullptr) {
      throw UsageError(
          fmt::format("{} is one checkpoint, and a run goes on from its newest one: pptrain resume {}. To "
                      "begin a new run at this one: pptrain fork {} --step STEP --to DIR",
                      arguments.run, run, run));
    }
    if (checkpoint->empty()) *checkpoint = arguments.run;
  }
  if (!arguments.config.empty()) {
    if (arguments.run.empty()) return;
    throw UsageError(
        fmt::format("{} and --config {} name two jobs: give one of them", arguments.run, arguments.config));
  }
  if (arguments.run.empty() && checkpoint != nullptr) arguments.run = *checkpoint;
  if (arguments.run.empty())
    throw UsageError("no job: give a run's folder (runs/first) or --config JOB.toml");
  if (arguments.run.ends_with(".toml")) {
    arguments.config = std::exchange(arguments.run, "");
    return;
  }
  const fs::path run = run_folder(arguments.run);
  if (!fs::is_regular_file(run / job_name)) {
    throw UsageError(fmt::format(
        "{}: no run has used this folder: there is no job.toml in it. Give --config JOB.toml", run.string()));
  }
  arguments.config = (run / job_name).string();
  arguments.run = run.string();
  arguments.set.insert(arguments.set.begin(), "run.dir=" + config::toml_string(run.string()));
}

CLI::Option* repeatable(CLI::Option* option) {
  return option->expected(1)->take_all()->allow_extra_args(false);
}

CLI::Validator such_as(const std::vector<std::string>& words) {
  return {[](std::string&) { return std::string(); }, fmt::format("{{{}}}", fmt::join(words, ","))};
}

void add_checkpoint(CLI::App& app, std::string& checkpoint) {
  add_option(app, "--checkpoint DIR", checkpoint,
             "Weights: a checkpoint, a run's folder or a Hugging Face directory; default: the newest "
             "checkpoint in run.dir, else model.hf_dir with model.init = \"hf\"");
}

int64_t world_of(const JobArguments& arguments) {
  const comm::Launch launch = comm::detect_launch();
  if (launch.kind == comm::LaunchKind::threads) return arguments.world;
  if (arguments.world == 0 || arguments.world == launch.world_size) return launch.world_size;
  throw UsageError(
      fmt::format("--world {}, but {} processes were launched", arguments.world, launch.world_size));
}

LoadOptions options_of_rank(const JobArguments& arguments,
                            std::function<void(const Plan&, const config::ReportConflict&)> inspect) {
  const comm::Launch launch = comm::detect_launch();
  return {.world = world_of(arguments),
          .of_processes = launch.kind != comm::LaunchKind::threads,
          .choices_of = arguments.run,
          .awaits_choices = launch.kind != comm::LaunchKind::threads && launch.rank != 0,
          .inspect = std::move(inspect)};
}

namespace {

// Lines of the log as a terminal may see them.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
  void sink_it_(const spdlog::details::log_msg& message) override {
    fmt::print(stderr, "{}\n", printable({message.payload.data(), message.payload.size()}));
  }
  void flush_() override { std::fflush(stderr); }
};

}  // namespace

void log_to_stderr() {
  auto logger = std::make_shared<spdlog::logger>("", std::make_shared<StderrSink>());
  const comm::Launch launch = comm::detect_launch();
  const bool speaks = launch.kind == comm::LaunchKind::threads || launch.rank == 0;
  logger->set_level(speaks ? spdlog::level::info : spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
}

std::vector<int64_t> parse_ids(const std::string& text, const std::string& option) {
  std::vector<int64_t> ids;
  std::string_view rest = text;
  if (rest.starts_with('[') && rest.ends_with(']')) rest = rest.substr(1, rest.size() - 2);
  while (true) {
    const std::string_view word = rest.substr(0, rest.find(','));
    const auto id = to_number<int64_t>(trim(word));
    if (!id)
      throw UsageError(
          fmt::format("{} \"{}\": expected numbers with commas between, like 1,2,3", option, text));
    ids.push_back(*id);
    if (word.size() == rest.size()) return ids;
    rest.remove_prefix(word.size() + 1);
  }
}

}  // namespace pptrain::app
