// This process as others see it: its exit codes, its host and its command.
#pragma once

#include <unistd.h>

#include <array>
#include <string>

namespace pptrain {

inline constexpr int exit_done = 0;
inline constexpr int exit_failed = 1;    // the run failed
inline constexpr int exit_usage = 2;     // a bad job or bad arguments
inline constexpr int exit_stopped = 3;   // a signal or a request stopped the run, which can go on
inline constexpr int exit_not_here = 4;  // pptrain check: a good job that would not start on this machine

// "unknown" if the system gives none.
inline std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

// What the running kernel is called since its start; "" if /proc does not tell.
std::string boot_id();
// Equal in the processes of one host alone, since several hosts may have one name.
inline std::string host_identity() {
  return host_name() + " " + boot_id();
}

// A word as a shell takes it: unchanged, or in quotes if it needs them.
std::string in_shell_quotes(const std::string& word);
// The command that started this process, quoted as a shell takes it. Empty if /proc does not tell.
std::string command_line();

// "2026-01-31 23:59:59 UTC"
std::string now_utc();

}  // namespace pptrain
