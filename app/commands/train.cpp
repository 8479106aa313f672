// pptrain --config job.toml
#include <spdlog/fmt/fmt.h>

#include <cstdint>
#include <optional>

#include "app/commands/commands.h"
#include "app/plan/load_plan.h"
#include "app/train/run_context.h"
#include "app/train/trainer.h"
#include "core/base/error.h"
#include "core/fault/shutdown.h"
#include "parallel/comm/bootstrap.h"

namespace pptrain::app {

namespace {

// The ranks that the launcher has started, or that it was told to start as threads; 0 where neither says.
int64_t world_of(const JobArguments& arguments) {
  const comm::Launch launch = comm::detect_launch();
  if (launch.kind == comm::LaunchKind::threads) return arguments.world;
  if (arguments.world == 0 || arguments.world == launch.world_size) return launch.world_size;
  throw UsageError(
      fmt::format("--world {}, but {} processes were launched", arguments.world, launch.world_size));
}

}  // namespace

int train(const JobArguments& arguments) {
  std::optional<fault::Shutdown> shutdown;
  const auto load = [&] {
    Plan plan = load_plan(arguments.config, arguments.set, world_of(arguments));
    shutdown.emplace();  // from here on a signal asks for an orderly stop
    return plan;
  };
  const auto stopped = [&] { return shutdown && shutdown->requested(); };
  return run_ranks(
      load, [&](RunContext& context) { return Trainer(context, *shutdown).run(); }, stopped);
}

int refuse(const std::string& fault) {
  return run_ranks([&]() -> Plan { throw UsageError(fault); }, {});
}

}  // namespace pptrain::app
