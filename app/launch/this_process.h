// Who this process is, for those who look at a run's folder.
#pragma once

#include <string>

namespace pptrain::app {

// The command that started this process, quoted as a shell takes it. Empty where /proc does not tell.
std::string command_line();

// "2026-01-31 23:59:59 UTC"
std::string now_utc();

}  // namespace pptrain::app
