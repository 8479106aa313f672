// Options that several subcommands take, each declared once.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "app/resolve/load_plan.h"

namespace pptrain::app {

struct JobArguments {
  std::string config;            // TOML file
  std::string run;               // instead: a run's folder; take_run() leaves only the folder here
  std::vector<std::string> set;  // "section.key=value"
  int64_t world = 0;             // ranks, which dp_shard = -1 fills; 0: not given
};

// An option, with the name of its value in the help: "--top-k K".
template <class Value>
CLI::Option* add_option(CLI::App& app, const std::string& usage, Value& value, const std::string& help) {
  const size_t space = usage.find(' ');
  return app.add_option(usage.substr(0, space), value, help)->option_text(usage.substr(space + 1));
}

// --config, --set and --world. Returns --config, which is required.
CLI::Option* add_job_options(CLI::App& command, JobArguments& arguments);

// The same with RUN, a run's folder, which may replace --config.
void add_run_options(CLI::App& command, JobArguments& arguments);

// Fills config, run, and run.dir first among the overrides, from the run that RUN or else `checkpoint` names:
// a run's folder, or a checkpoint in it. `run` stays empty if --config names the job. If RUN is a checkpoint,
// it becomes `checkpoint`, unless that names another one. `checkpoint` null: the run goes on, so RUN may not
// be a checkpoint. Throws UsageError for that, if neither RUN nor --config names a job, or if both do.
void take_run(JobArguments& arguments, std::string* checkpoint);

// The option may be repeated, and takes one value each time, unchanged: CLI11 would else take "[a,b]" for
// two.
CLI::Option* repeatable(CLI::Option* option);

// For completion: values to propose, if others are allowed too. Refuses nothing.
CLI::Validator such_as(const std::vector<std::string>& words);

void add_checkpoint(CLI::App& command, std::string& checkpoint);

// "1,2,3", or "[1,2,3]" as printed by --json. Throws UsageError that names the option.
std::vector<int64_t> parse_ids(const std::string& text, const std::string& option);

// --- How many ranks a command runs.

// The ranks that the launcher has started, or that --world gives; 0 if neither does. Throws UsageError if
// they contradict each other.
int64_t world_of(const JobArguments& arguments);

// For the plan of a command that every launched process runs. Throws UsageError as world_of() does.
LoadOptions options_of_rank(const JobArguments& arguments,
                            std::function<void(const Plan&, const config::ReportConflict&)> inspect);

// From here on the log goes to standard error, only from rank 0 except for warnings: standard output is for
// results.
void log_to_stderr();

}  // namespace pptrain::app
