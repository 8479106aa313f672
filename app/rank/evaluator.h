// Validation loss through the same pipeline, forward only.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "app/data/datasets.h"
#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "core/metrics/step_record.h"
#include "parallel/pipeline/executor.h"

namespace pptrain::app {

struct DocumentLoss {
  int64_t document = 0;  // its number in the stream
  double sum = 0;        // nats, over its targets
  int64_t targets = 0;
};

class Evaluator {
 public:
  // Validates on each of the sources that has validation data, with the stages placed as in training. Throws
  // UsageError if no source has any. Context and model must outlive the evaluator. `documents`: run() also
  // finds the loss of each document.
  Evaluator(RunContext& context, RankModel& model, const std::vector<OpenSource>& sources,
            bool documents = false);
  ~Evaluator();

  struct Result {
    metrics::SourceLoss all;
    std::vector<metrics::SourceLoss> sources;          // in the order of the job, those with validation data
    std::vector<std::vector<DocumentLoss>> documents;  // by source, if asked for
  };
  // Losses of eval.batches batches of each source, the same on every rank. `progress`, if given, is called
  // after each batch with the numbers of batches done and of all batches. Collective.
  using Progress = std::function<void(int64_t done, int64_t all)>;
  Result run(const Progress& progress = {});

 private:
  struct Validation;  // of one source
  static std::vector<Validation> open(const RunContext& context, const std::vector<OpenSource>& sources,
                                      bool documents);
  metrics::SourceLoss run(const Validation& validation, const std::function<void()>& batch_done);

  RankModel& model_;
  bool documents_;
  std::vector<Validation> validations_;
  pipeline::Executor executor_;
};

}  // namespace pptrain::app
