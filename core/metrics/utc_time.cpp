#include "core/metrics/utc_time.h"

#include <spdlog/fmt/chrono.h>
#include <spdlog/fmt/fmt.h>

#include <cstdio>
#include <ctime>

namespace pptrain::metrics {

std::string utc_text(std::chrono::system_clock::time_point time) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(time);
  const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(time - seconds);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(seconds)), rest.count());
}

std::optional<std::chrono::system_clock::time_point> parse_utc(const std::string& text) {
  std::tm tm{};
  int milliseconds = 0, read = -1;
  const auto matches = [&](const char* format) {
    milliseconds = 0;
    read = -1;
    std::sscanf(text.c_str(), format, &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour, &tm.tm_min,
                &tm.tm_sec, &milliseconds, &read);
    return read == static_cast<int>(text.size());
  };
  const auto matches_seconds = [&] {
    read = -1;
    std::sscanf(text.c_str(), "%4d-%2d-%2d %2d:%2d:%2d UTC%n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday,
                &tm.tm_hour, &tm.tm_min, &tm.tm_sec, &read);
    return read == static_cast<int>(text.size());
  };
  if (!matches("%4d-%2d-%2dT%2d:%2d:%2d.%3dZ%n")) {
    milliseconds = 0;
    if (!matches_seconds()) return std::nullopt;
  }
  tm.tm_year -= 1900;
  tm.tm_mon -= 1;
  return std::chrono::system_clock::from_time_t(timegm(&tm)) + std::chrono::milliseconds(milliseconds);
}

}  // namespace pptrain::metrics
