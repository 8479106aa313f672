#include "app/rank/evaluator.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "app/data/text_codec.h"
#include "core/base/error.h"
#include "core/data/data_loader.h"
#include "core/data/documents.h"
#include "core/text/tokenizer/tokenizer.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::app {

namespace {

// Bytes of text per token id, by the job's tokenizer; nothing if the job names none, or if it does not tell.
// Throws Error if it cannot be read.
std::optional<std::vector<uint32_t>> read_token_bytes(const config::JobConfig& job) {
  const std::filesystem::path file = tokenizer_of(job);
  if (file.empty()) return std::nullopt;
  std::vector<uint32_t> bytes = tokenizer::Tokenizer::load(file).token_bytes();
  if (bytes.empty()) return std::nullopt;
  return bytes;
}

// Bytes of text of the valid tokens' labels, of microbatches that have labels here, on any device.
// token_bytes: of each id, none for ids beyond; empty: every token is a byte.
int64_t bytes_of_labels(std::span<const uint32_t> token_bytes,
                        std::span<const data::Microbatch> microbatches) {
  int64_t sum = 0;
  for (const data::Microbatch& microbatch : microbatches) {
    const at::Tensor labels = microbatch.labels.cpu().contiguous();
    for (const int64_t label :
         std::span(labels.const_data_ptr<int64_t>(), static_cast<size_t>(labels.numel()))) {
      if (label == data::ignore_label) continue;
      if (token_bytes.empty()) {
        ++sum;
      } else if (std::cmp_less(label, token_bytes.size())) {
        sum += token_bytes[static_cast<size_t>(label)];
      }
    }
  }
  return sum;
}

// If the ends of documents are unknown, each row is a document; its last target is the next row's first
// token.
std::vector<int64_t> starts_of(const RunContext& context, const data::TokenDataset& stream) {
  const data::LoaderOptions options = loader_options(context);
  if (stream.has_index() || options.document_end) return data::document_starts(stream, options.document_end);
  std::vector<int64_t> starts{0};
  for (int64_t row = options.seq_len; row + 1 < stream.size(); row += options.seq_len)
    starts.push_back(row + 1);
  starts.push_back(stream.size());
  return starts;
}

// The losses of single documents, from this rank's forward passes during its lifetime. The microbatches need
// places (LoaderOptions).
class DocumentLosses {
 public:
  // starts: first tokens of the stream's documents, ascending from 0; the last is the end of all.
  DocumentLosses(RankModel& model, const std::vector<int64_t>& starts)
      : model_(model), starts_(starts), sums_(starts.size() - 1, 0), targets_(starts.size() - 1, 0) {
    if (!model.has_last_stage()) return;
    model.loss_stage().hear_losses(
        [this](const data::Microbatch& data, const at::Tensor& losses) { add(data, losses); });
  }
  ~DocumentLosses() {
    if (model_.has_last_stage()) model_.loss_stage().hear_losses({});
  }
  DocumentLosses(const DocumentLosses&) = delete;
  DocumentLosses& operator=(const DocumentLosses&) = delete;

  // Documents of all ranks that had a target, in order; the same on every rank. Collective.
  std::vector<DocumentLoss> total() const {
    const std::vector<double> sums = model_.sum_of_last_stage(sums_);
    const std::vector<double> targets = model_.sum_of_last_stage(targets_);
    std::vector<DocumentLoss> documents;
    for (size_t i = 0; i < sums.size(); ++i) {
      if (targets[i] > 0)
        documents.push_back({static_cast<int64_t>(i), sums[i], static_cast<int64_t>(targets[i])});
    }
    return documents;
  }

 private:
  void add(const data::Microbatch& data, const at::Tensor& losses) {
    const at::Tensor loss = losses.cpu(), labels = data.labels.cpu().contiguous();
    const auto* const of_token = loss.const_data_ptr<float>();
    const auto* const label = labels.const_data_ptr<int64_t>();
    const auto* const place = data.places.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < loss.numel(); ++i) {
      if (label[i] == data::ignore_label) continue;
      const auto document =
          static_cast<size_t>(std::ranges::upper_bound(starts_, place[i]) - starts_.begin() - 1);
      sums_.at(document) += static_cast<double>(of_token[i]);
      targets_[document] += 1;
    }
  }

  RankModel& model_;
  const std::vector<int64_t>& starts_;
  std::vector<double> sums_, targets_;  // of each document, on this rank
};

}  // namespace

struct Evaluator::Validation {
  std::string name;
  std::optional<std::vector<uint32_t>> token_bytes;  // bytes_of_labels(); nothing: not known
  data::ValidationLoader loader;
  std::vector<int64_t> starts;  // of documents, if their losses are asked for
};

std::vector<Evaluator::Validation> Evaluator::open(const RunContext& context,
                                                   const std::vector<OpenSource>& sources, bool documents) {
  data::LoaderOptions options = loader_options(context);
  options.need_places = documents && options.need_labels;
  const bool all_of_bytes = std::ranges::all_of(sources, &OpenSource::bytes);
  const auto texts = all_of_bytes ? std::nullopt : read_token_bytes(context.job);
  std::vector<Validation> validations;
  for (const OpenSource& source : sources) {
    if (!source.validation) continue;
    validations.push_back(
        {.name = source.name,
         .token_bytes = source.bytes ? std::optional<std::vector<uint32_t>>(std::in_place) : texts,
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
                model.head_links()) {
  executor_.report_to(context.activity, context.device);
}

Evaluator::~Evaluator() = default;

metrics::SourceLoss Evaluator::run(const Validation& validation, const std::function<void()>& batch_done) {
  metrics::SourceLoss loss{.name = validation.name};
  int64_t own_bytes = 0;  // of this rank's labels
  for (int64_t i = 0; i < validation.loader.batches(); ++i) {
    const std::vector<data::Microbatch> batch = validation.loader.batch(i);
    executor_.run(batch);
    for (const data::Microbatch& microbatch : batch) loss.tokens += microbatch.global_targets;
    if (validation.token_bytes && model_.has_last_stage())
      own_bytes += bytes_of_labels(*validation.token_bytes, batch);
    batch_done();
  }
  loss.sum = model_.global_loss();
  if (validation.token_bytes)
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
