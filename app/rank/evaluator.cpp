#include "app/rank/evaluator.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/data/documents.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::app {

namespace {

// Where nothing says where documents end, a row is one, whose last target is the first token of the next row.
std::vector<int64_t> starts_of(const RunContext& context, const data::TokenDataset& stream) {
  const data::LoaderOptions options = loader_options(context);
  if (stream.has_index() || options.document_end) return data::document_starts(stream, options.document_end);
  std::vector<int64_t> starts{0};
  for (int64_t row = options.seq_len; row + 1 < stream.size(); row += options.seq_len)
    starts.push_back(row + 1);
  starts.push_back(stream.size());
  return starts;
}

}  // namespace

std::vector<Evaluator::Validation> Evaluator::open(const RunContext& context,
                                                   const std::vector<OpenSource>& sources, bool documents) {
  data::LoaderOptions options = loader_options(context);
  options.need_places = documents && options.need_labels;
  const bool all_of_bytes = std::ranges::all_of(sources, &OpenSource::bytes);
  const std::optional<TokenBytes> texts = all_of_bytes ? std::nullopt : read_token_bytes(context.job);
  std::vector<Validation> validations;
  for (const OpenSource& source : sources) {
    if (!source.validation) continue;
    validations.push_back(
        {.name = source.name,
         .bytes = source.bytes ? std::optional(TokenBytes()) : texts,
         .loader = {*source.validation, options, context.job.eval.batches},
         .starts = documents ? starts_of(context, *source.validation) : std::vector<int64_t>()});
  }
  if (validations.empty())
    throw UsageError("the job has no validation data: give data.val_fraction or data.val_path");
  return validations;
}

Evaluator::Evaluator(RunContext& context, RankModel& model, const std::vector<OpenSource>& sources,
                     bool documents)
    : model_(model),
      documents_(documents),
      validations_(open(context, sources, documents)),
      executor_(model.pipeline_stages(), context.mesh.along(mesh::Axis::pp),
                schedule::lower(schedule::forward_only(context.plan.schedule), lower_options(context.plan)),
                pipeline::Executor::Mode::evaluate) {
  executor_.report_to(context.activity, context.device);
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
    std::optional<DocumentLosses> documents;
    if (documents_) documents.emplace(model_, validation.starts);
    const metrics::SourceLoss& loss = result.sources.emplace_back(run(validation, batch_done));
    if (documents) result.documents.push_back(documents->total());
    result.all.sum += loss.sum;
    result.all.tokens += loss.tokens;
    result.all.bytes =
        result.all.bytes && loss.bytes ? std::optional(*result.all.bytes + *loss.bytes) : std::nullopt;
  }
  return result;
}

}  // namespace pptrain::app
