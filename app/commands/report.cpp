// pptrain report
#include <spdlog/fmt/fmt.h>

#include <string>
#include <vector>

#include "app/commands/commands.h"
#include "app/report/page.h"
#include "core/io/atomic_file.h"

namespace pptrain::app {

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
  io::write_file_atomically(arguments.output, render_report(runs));
  fmt::print("{}\n", arguments.output);
  return 0;
}

}  // namespace pptrain::app
