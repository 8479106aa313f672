// pptrain --config job.toml
#include "app/commands/commands.h"
#include "app/plan/job.h"
#include "app/train/run_context.h"
#include "app/train/trainer.h"
#include "core/fault/shutdown.h"

namespace pptrain::app {

int train(const JobArguments& arguments) {
  const config::JobConfig job = load_job(arguments);
  const fault::Shutdown shutdown;
  return run_ranks(job, [&](RunContext& context) { return Trainer(context, shutdown).run(); });
}

}  // namespace pptrain::app
