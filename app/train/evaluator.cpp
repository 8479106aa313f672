#include "app/train/evaluator.h"

#include "core/base/error.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::app {

std::vector<Evaluator::Validation> Evaluator::open(const RunContext& context,
                                                   const std::vector<OpenSource>& sources) {
  std::vector<Validation> validations;
  for (const OpenSource& source : sources) {
    if (!source.validation) continue;
    validations.push_back(
        {.name = source.name,
         .bytes = source.bytes,
         .loader = {*source.validation, loader_options(context), context.job.eval.batches}});
  }
  if (validations.empty())
    throw UsageError("the job has no validation data: give data.val_fraction or data.val_path");
  return validations;
}

Evaluator::Evaluator(RunContext& context, RankModel& model, const std::vector<OpenSource>& sources)
    : model_(model),
      validations_(open(context, sources)),
      executor_(model.stages(), context.mesh.along(mesh::Axis::pp),
                schedule::lower(schedule::forward_only(context.plan.schedule), lower_options(context.plan)),
                pipeline::Executor::Mode::evaluate) {
  executor_.on_stage_actions(model.stage_actions());
  executor_.report_to(context.report.activity);
}

Evaluator::Result Evaluator::run() {
  Result result;
  for (const Validation& validation : validations_) {
    for (int64_t i = 0; i < validation.loader.batches(); ++i) executor_.run(validation.loader.batch(i));
    const pipeline::LossSum sum = model_.global_loss();
    result.all.loss += sum.loss;
    result.all.tokens += sum.tokens;
    result.sources.push_back(
        {.name = validation.name, .sum = sum.loss, .tokens = sum.tokens, .bytes = validation.bytes});
  }
  return result;
}

}  // namespace pptrain::app
