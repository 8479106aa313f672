#include "app/rank/evaluator.h"

#include <algorithm>

#include "core/base/error.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::app {

std::vector<Evaluator::Validation> Evaluator::open(const RunContext& context,
                                                   const std::vector<OpenSource>& sources) {
  const bool all_of_bytes = std::ranges::all_of(sources, &OpenSource::bytes);
  const std::optional<TokenBytes> texts = all_of_bytes ? std::nullopt : read_token_bytes(context.job);
  std::vector<Validation> validations;
  for (const OpenSource& source : sources) {
    if (!source.validation) continue;
    validations.push_back(
        {.name = source.name,
         .bytes = source.bytes ? std::optional(TokenBytes()) : texts,
         .loader = {*source.validation, loader_options(context), context.job.eval.batches}});
  }
  if (validations.empty())
    throw UsageError("the job has no validation data: give data.val_fraction or data.val_path");
  return validations;
}

Evaluator::Evaluator(RunContext& context, RankModel& model, const std::vector<OpenSource>& sources)
    : model_(model),
      validations_(open(context, sources)),
      executor_(model.pipeline_stages(), context.mesh.along(mesh::Axis::pp),
                schedule::lower(schedule::forward_only(context.plan.schedule), lower_options(context.plan)),
                pipeline::Executor::Mode::evaluate) {
  executor_.report_to(context.report.activity, context.device);
}

metrics::SourceLoss Evaluator::run(const Validation& validation, const std::function<void()>& batch_done) {
  metrics::SourceLoss loss{.name = validation.name};
  int64_t own_bytes = 0;  // of this rank's labels
  for (int64_t i = 0; i < validation.loader.batches(); ++i) {
    const std::vector<data::Microbatch> batch = validation.loader.batch(i);
    executor_.run(batch);
    for (const data::Microbatch& microbatch : batch) loss.tokens += microbatch.global_targets;
    if (validation.bytes && model_.has_last_stage()) own_bytes += validation.bytes->of_labels(batch);
    batch_done();
  }
  loss.sum = model_.global_loss();
  if (validation.bytes)
    loss.bytes = static_cast<int64_t>(model_.sum_of_last_stage(static_cast<double>(own_bytes)));
  return loss;
}

Evaluator::Result Evaluator::run(const Progress& progress) {
  Result result;
  result.all.bytes = 0;
  int64_t done = 0, all = 0;
  for (const Validation& validation : validations_) all += validation.loader.batches();
  const auto batch_done = [&] {
    ++done;
    if (progress) progress(done, all);
  };
  for (const Validation& validation : validations_) {
    const metrics::SourceLoss& loss = result.sources.emplace_back(run(validation, batch_done));
    result.all.sum += loss.sum;
    result.all.tokens += loss.tokens;
    result.all.bytes =
        result.all.bytes && loss.bytes ? std::optional(*result.all.bytes + *loss.bytes) : std::nullopt;
  }
  return result;
}

}  // namespace pptrain::app
