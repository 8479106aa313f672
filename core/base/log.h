// Lines for debugging, by subsystem, of every rank. All are off until the user asks for them (--log
// comm=debug); a line that is off costs one comparison.
#pragma once

#include <spdlog/logger.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace pptrain {

enum class Subsystem : uint8_t { schedule, comm, data, checkpoint, memory };

spdlog::logger& log_of(Subsystem subsystem);
inline bool logs(Subsystem subsystem, spdlog::level::level_enum level) {
  return log_of(subsystem).should_log(level);
}

// `wanted`: "comm=debug", or "debug" for all subsystems; the later counts. Lines go to standard error, or to
// `folder`/rank_N.log if `folder` is not empty; the first line makes the file. `rank`: of threads that
// LogRank does not name; -1: none. Throws UsageError that names the valid words.
void turn_on_logs(std::span<const std::string> wanted, const std::filesystem::path& folder, int rank);

// --- The rank whose lines a thread's are.

int log_rank();

// While it lives, lines of this thread are of `rank`.
class LogRank {
 public:
  explicit LogRank(int rank);
  ~LogRank();
  LogRank(const LogRank&) = delete;
  LogRank& operator=(const LogRank&) = delete;

 private:
  int before_;
};

}  // namespace pptrain
