#include "app/run/run_log.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/logger.h>
#include <spdlog/spdlog.h>

#include <initializer_list>
#include <memory>

#include "core/metrics/log_file.h"

namespace pptrain::app {

void start_log(metrics::Color color, const comm::Launch& launch) {
  const auto console = std::make_shared<metrics::Console>(metrics::wants_color(color));
  const bool first = launch.rank == 0;
  const auto file =
      std::make_shared<metrics::LogFile>(first ? "log.txt" : fmt::format("log.rank_{}.txt", launch.rank));
  if (!first) {
    console->set_pattern(fmt::format("%T rank {}: %^%v%$", launch.rank));
    for (spdlog::sinks::sink* sink : std::initializer_list<spdlog::sinks::sink*>{console.get(), file.get()})
      sink->set_level(spdlog::level::warn);
  }
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("pptrain", spdlog::sinks_init_list{console, file}));
}

void open_log(const std::filesystem::path& run_dir) {
  if (const auto file = metrics::file_of_log()) file->open(run_dir);
}

void log_failure(const std::string& message) {
  const auto file = metrics::file_of_log();
  if (!file) return;
  try {
    file->log(spdlog::details::log_msg("pptrain", spdlog::level::err, message));
  } catch (const spdlog::spdlog_ex&) {
    // The failure itself is what main reports.
  }
}

}  // namespace pptrain::app
