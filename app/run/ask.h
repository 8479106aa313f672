// Asks a run for something and waits until it is done.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

#include "app/run/request_file.h"

namespace pptrain::app {

struct AskOptions {
  std::chrono::duration<double> patience{600};
  bool waits = true;  // false: the request is put there, and that is all
  // Asked some times a second: the user wants to wait no longer. May be empty.
  std::function<bool()> interrupted = {};
  std::function<void(const std::string&)> progress = {};  // lines for the user; may be empty
};

// What came of it, for people and for programs.
struct Outcome {
  bool done = false;
  std::string state = {};       // requested | saved | stopped | finished | refused | failed | unanswered
  int64_t step = 0;             // of the checkpoint; 0: none
  std::string checkpoint = {};  // its name
  std::string message = {};
};

// A run that has the folder is asked; where none has, nothing is written and the outcome is "refused". A stop
// is done when the run has given the folder up. Where the run ends by itself meanwhile, how it ended counts:
// what it saved at its end is as good as an answer. Throws UsageError where the folder is none of a run, and
// Error where the request cannot be written.
Outcome ask(const std::filesystem::path& run_dir, RequestKind kind, const AskOptions& options);

}  // namespace pptrain::app
