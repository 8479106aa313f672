// Where a training run's log goes: lines on the console, and a file in the run's folder.
#pragma once

#include <filesystem>
#include <string>

#include "core/metrics/console.h"
#include "parallel/comm/bootstrap.h"

namespace pptrain::app {

// From here on what spdlog prints goes to standard output with the time, and is kept for the file. Of a rank
// that a launcher started, but rank 0, only warnings and errors are taken.
void start_log(metrics::Color color, const comm::Launch& launch);

// Writes what was kept to `run_dir`/log.txt (rank 0, or all ranks that are threads) or log.rank_N.txt, and
// from now on each line as it comes. Earlier starts' lines stay. Does nothing the second time, or without
// start_log.
void open_log(const std::filesystem::path& run_dir);

// Writes an error to the file alone: the console gets it from main.
void log_failure(const std::string& message);

}  // namespace pptrain::app
