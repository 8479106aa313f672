#include "app/commands/launched_world.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <memory>
#include <mutex>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "parallel/comm/bootstrap.h"

namespace pptrain::app {

int64_t world_of(const JobArguments& arguments) {
  const comm::Launch launch = comm::detect_launch();
  if (launch.kind == comm::LaunchKind::threads) return arguments.world;
  if (arguments.world == 0 || arguments.world == launch.world_size) return launch.world_size;
  throw UsageError(
      fmt::format("--world {}, but {} processes were launched", arguments.world, launch.world_size));
}

namespace {

// Lines of the log as a terminal may see them.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
  void sink_it_(const spdlog::details::log_msg& message) override {
    fmt::print(stderr, "{}\n", printable({message.payload.data(), message.payload.size()}));
  }
  void flush_() override { std::fflush(stderr); }
};

}  // namespace

void log_to_stderr() {
  auto logger = std::make_shared<spdlog::logger>("", std::make_shared<StderrSink>());
  const comm::Launch launch = comm::detect_launch();
  const bool speaks = launch.kind == comm::LaunchKind::threads || launch.rank == 0;
  logger->set_level(speaks ? spdlog::level::info : spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace pptrain::app
