// pptrain --config job.toml
#include "app/commands/commands.h"
#include "app/plan/load_plan.h"
#include "app/train/run_context.h"
#include "app/train/trainer.h"
#include "core/fault/shutdown.h"

namespace pptrain::app {

int train(const JobArguments& arguments) {
  const Plan plan = load_plan(arguments.config, arguments.set);
  const fault::Shutdown shutdown;
  return run_ranks(plan, [&](RunContext& context) { return Trainer(context, shutdown).run(); });
}

}  // namespace pptrain::app
