// How the last run in a folder ended: FOLDER/end.json, for those who look at it from outside. It is there
// from the end of a run until the next one begins; a run that was killed leaves none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "app/run/run_lock.h"

namespace pptrain::app {

struct RunEnd {
  std::string how;  // finished | stopped | diverged | failed
  int64_t step = 0;
  std::string checkpoint = {};  // the folder's name, "step_120"; empty: nothing was saved at the end
  std::string message = {};     // of a failure or a divergence
  LockHolder process = {};      // whose end it is; pid 0 where the file system cannot lock
};

// Replaces the file. Throws Error that names it.
void write_run_end(const std::filesystem::path& folder, const RunEnd& end);

// Nothing where there is none that can be read.
std::optional<RunEnd> read_run_end(const std::filesystem::path& folder);

// A run begins.
void forget_run_end(const std::filesystem::path& folder);

}  // namespace pptrain::app
