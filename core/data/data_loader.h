// Microbatches of a step, for one rank. Every rank derives the same assignment from the job alone, so the
// ranks of a pipeline, and those that share out rows, agree on every microbatch without a message.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/data/microbatch.h"
#include "core/data/sampler.h"
#include "core/data/token_dataset.h"
#include "core/kernels/context_plan.h"

namespace pptrain::data {

struct LoaderOptions {
  int64_t seq_len = 0;
  int64_t micro_batch_size = 1;  // b: rows of one microbatch on one data rank
  int64_t microbatches = 1;      // m: microbatches of a step
  int64_t dp_size = 1;           // D
  int64_t dp_rank = 0;
  // Context-parallel ranks, which share out each row: this one gets its pieces of the tokens, of the labels,
  // which are those of the whole row, and of the positions.
  int cp_size = 1;
  int cp_rank = 0;
  kernels::ContextOrder cp_order = kernels::ContextOrder::zigzag;
  // The token that ends a document: rows are cut behind it into documents. None: each row is one.
  std::optional<int64_t> document_end = std::nullopt;
  bool need_tokens = true;  // this rank holds the first stage
  bool need_labels = true;  // this rank holds the last stage
  at::Device device = at::kCPU;

  // Rows of a step over all data ranks: D * m * b.
  int64_t samples_per_step() const { return dp_size * microbatches * micro_batch_size; }
};

// One step's data for one rank.
struct Step {
  std::vector<Microbatch> microbatches;
  int64_t targets = 0;  // labels that count, over all data ranks
};

// A step takes the next D*m*b samples in the sampler's order. Microbatch j consists of the step's samples
// [j*D*b, (j+1)*D*b); data rank d takes the d-th contiguous share of b of them.
class DataLoader {
 public:
  // Throws Error when the dataset is shorter than one sample, saying how many tokens are needed.
  DataLoader(TokenDataset dataset, const LoaderOptions& options, bool shuffle, uint64_t seed);

  // The step that starts at `next_sample`, which then grows by samples_per_step(). Rows have seq_len tokens.
  Step step(int64_t next_sample) const;
  int64_t samples_per_step() const { return options_.samples_per_step(); }
  int64_t samples_per_epoch() const { return sampler_.samples(); }

 private:
  TokenDataset dataset_;
  LoaderOptions options_;
  Sampler sampler_;
};

// Validation: samples in file order, divided into batches as steps are. Every token after the first is a
// target once: a last sample that is shorter than seq_len and the rows missing in the last batch are filled
// up with token 0 and ignore_label. So every row is a document of seq_len tokens, the filling ones too.
class ValidationLoader {
 public:
  // batches: at most so many; 0: all. Throws Error when there is nothing to predict (fewer than two tokens).
  ValidationLoader(TokenDataset dataset, const LoaderOptions& options, int64_t batches);

  int64_t batches() const { return batches_; }
  std::vector<Microbatch> batch(int64_t index) const;
  // Targets that count, over all batches and data ranks, where rows are documents.
  int64_t valid_tokens() const;

 private:
  TokenDataset dataset_;
  LoaderOptions options_;
  int64_t batches_;
};

}  // namespace pptrain::data
