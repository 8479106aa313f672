// This process as others see it: its exit codes, and its host's name.
#pragma once

#include <unistd.h>

#include <array>
#include <string>

namespace pptrain {

inline constexpr int exit_done = 0;
inline constexpr int exit_failed = 1;   // the run failed
inline constexpr int exit_usage = 2;    // a bad job or bad arguments
inline constexpr int exit_stopped = 3;  // a signal or a request stopped the run, which can go on

// "unknown" where the system gives none.
inline std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

}  // namespace pptrain
