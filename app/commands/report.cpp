// pptrain report
#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "app/commands/commands.h"
#include "app/report/page.h"
#include "core/io/atomic_file.h"

namespace pptrain::app {

CLI::App* add_report(CLI::App& cli, ReportArguments& arguments) {
  CLI::App* report = cli.add_subcommand("report", "Runs as one page of HTML: curves, schedule, what differs");
  report
      ->add_option("RUN", arguments.runs,
                   "A run's folder, or a file like its metrics.jsonl; several are compared")
      ->required();
  report->add_option("-o,--output", arguments.output, "The page")->option_text("FILE")->capture_default_str();
  return report;
}

int report(const ReportArguments& arguments) {
  std::vector<RunData> runs;
  for (const std::string& run : arguments.runs) {
    runs.push_back(read_run(run));
    const RunData& read = runs.back();
    if (read.damaged > 0) {
      fmt::print(stderr, "{}: {} damaged line{} left out, the first is line {}\n", run, read.damaged,
                 read.damaged == 1 ? " is" : "s are", read.first_damaged);
    }
  }
  io::write_output(arguments.output, render_report(runs));
  fmt::print("{}\n", arguments.output);
  return 0;
}

}  // namespace pptrain::app
