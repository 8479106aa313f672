#include "app/train/evaluator.h"

#include "app/train/datasets.h"
#include "core/base/error.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::app {

namespace {

data::ValidationLoader open_validation(const RunContext& context) {
  data::Split split = open_data(context.job, context.model.vocab);
  if (!split.validation)
    throw UsageError("the job has no validation data: give data.val_fraction or data.val_path");
  return {*split.validation, loader_options(context), context.job.eval.batches};
}

}  // namespace

Evaluator::Evaluator(RunContext& context, RankModel& model)
    : model_(model),
      loader_(open_validation(context)),
      executor_(model.stages(), context.mesh.along(mesh::Axis::pp),
                schedule::lower(schedule::forward_only(context.plan.schedule), lower_options(context.plan)),
                pipeline::Executor::Mode::evaluate) {
  executor_.on_stage_actions(model.stage_actions());
  executor_.report_to(context.report.activity);
}

pipeline::LossSum Evaluator::run() {
  for (int64_t i = 0; i < loader_.batches(); ++i) executor_.run(loader_.batch(i));
  return model_.global_loss();
}

}  // namespace pptrain::app
