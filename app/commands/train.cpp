// pptrain --config job.toml
#include <optional>

#include "app/commands/commands.h"
#include "app/plan/load_plan.h"
#include "app/train/run_context.h"
#include "app/train/trainer.h"
#include "core/base/error.h"
#include "core/fault/shutdown.h"

namespace pptrain::app {

int train(const JobArguments& arguments) {
  std::optional<fault::Shutdown> shutdown;
  const auto load = [&] {
    Plan plan = load_plan(arguments.config, arguments.set);
    shutdown.emplace();  // from here on a signal asks for an orderly stop
    return plan;
  };
  return run_ranks(load, [&](RunContext& context) { return Trainer(context, *shutdown).run(); });
}

int refuse(const std::string& fault) {
  return run_ranks([&]() -> Plan { throw UsageError(fault); }, {});
}

}  // namespace pptrain::app
