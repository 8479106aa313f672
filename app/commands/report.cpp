// pptrain report
#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "app/commands/command_line.h"
#include "app/commands/commands.h"
#include "app/commands/job_options.h"
#include "app/report/page.h"
#include "app/run/run_status.h"
#include "core/base/error.h"
#include "core/io/atomic_file.h"
#include "core/io/paths.h"

namespace pptrain::app {

namespace fs = std::filesystem;

namespace {

struct ReportArguments {
  std::vector<std::string> runs;  // runs' folders, folders of runs, or files like metrics.jsonl
  std::string output;             // file; "": report.html in the only run's folder, else in this one
};

CLI::App* declare_report(CLI::App& cli, ReportArguments& arguments) {
  CLI::App* app = cli.add_subcommand("report", "Shows runs as one HTML page: curves, schedule, differences");
  app->add_option("RUN", arguments.runs,
                  "A run's folder, a folder of runs, or a file like metrics.jsonl; several are compared")
      ->required();
  add_option(*app, "-o,--output FILE", arguments.output,
             "Page to write; default: report.html in the run's folder, or in this folder for several runs");
  return app;
}

// In a folder of runs, takes those that have made a step.
std::vector<std::string> runs_to_show(const ReportArguments& arguments) {
  std::vector<std::string> runs;
  for (const std::string& given : arguments.runs) {
    for (const fs::path& run : runs_of(given)) {
      if (run == given || io::is_there(run / "metrics.jsonl")) runs.push_back(run.string());
    }
  }
  if (runs.empty()) throw UsageError("no run in these folders has made a step: there is nothing to show");
  return runs;
}

int report(const ReportArguments& arguments) {
  const std::vector<std::string> names = runs_to_show(arguments);
  std::vector<RunData> runs;
  for (const std::string& run : names) {
    runs.push_back(read_run(run));
    const RunData& read = runs.back();
    if (read.damaged > 0) {
      fmt::print(stderr, "{}: {} damaged line{} left out, the first is line {}\n", run, read.damaged,
                 read.damaged == 1 ? " is" : "s are", read.first_damaged);
    }
  }
  const bool of_one = names.size() == 1 && fs::is_directory(names.front());
  const fs::path output = !arguments.output.empty() ? fs::path(arguments.output)
                          : of_one                  ? fs::path(names.front()) / "report.html"
                                                    : fs::path("report.html");
  io::write_output(output, render_report(runs));
  if (io::own_descriptor(output) >= 0) return 0;  // the page may be on standard output
  fmt::print("{}\n", fs::is_regular_file(output)
                         ? "file://" + fs::absolute(output).lexically_normal().string()
                         : output.string());
  return 0;
}

}  // namespace

void add_report(CommandLine& line) {
  line.add(declare_report, report);
}

}  // namespace pptrain::app
