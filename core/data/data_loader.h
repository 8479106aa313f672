// Microbatches of a step, for one rank. Every rank derives the same assignment from the job alone, so the
// ranks of a pipeline, and those that share out rows, agree on every microbatch without a message.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/data/microbatch.h"
#include "core/data/sampler.h"
#include "core/data/token_dataset.h"

namespace pptrain::data {

// One step's data for one rank. The numbers are over all data ranks.
struct Step {
  std::vector<Microbatch> microbatches;  // or their slices, in order, where the options cut them
  int64_t samples = 0;                   // that it took
  int64_t targets = 0;                   // labels that count
  int64_t tokens = 0;                    // of all microbatches, filling included
  int64_t padding = 0;                   // tokens of filling
  int64_t end = 0;                       // of the slowest data rank, as options.step_end says
};

// How a stream becomes steps: rows cut from it, or whole documents.
class StepSource;

// One of the streams that training mixes.
struct WeightedStream {
  TokenDataset tokens;
  double weight = 1;  // of its samples among all
};

// The order: sample n of the run is of the stream that the blend of weights says (sampler.h), and there the
// next one of its own sampler, which has epochs of its own. So `next_sample` is all that a resume needs.
//
// Rows cut from the stream: a step takes the next D*m*b samples in this order. Microbatch j consists of the
// step's samples [j*D*b, (j+1)*D*b); data rank d takes the d-th contiguous share of b of them.
//
// Whole documents (options.whole_documents()): a sample is a document, or a slice of a long one
// (DocumentSlices), and a step takes the next ones of the order that it has room for (document_source.cpp).
class DataLoader {
 public:
  // Throws Error when a stream is shorter than one sample, saying how many tokens are needed, and where
  // documents are to be kept whole, but nothing says where they end.
  DataLoader(std::vector<WeightedStream> streams, const LoaderOptions& options, bool shuffle, uint64_t seed);
  DataLoader(TokenDataset dataset, const LoaderOptions& options, bool shuffle, uint64_t seed);

  // The step that starts at `next_sample`, which then grows by the samples that the step took.
  Step step(int64_t next_sample) const;
  // Passes over each stream that the first `samples` of the run make, parts of one included.
  std::vector<double> epochs(int64_t samples) const;
  int64_t samples_per_epoch() const;  // of all streams together

 private:
  void log_step(int64_t next_sample) const;

  LoaderOptions options_;
  Blend blend_;
  std::shared_ptr<const StepSource> source_;
  std::vector<Sampler> samplers_;  // of each stream
};

// Validation: samples in file order, divided into batches as steps are. Every token after the first (of each
// document, where these are known) is a target once: a last sample that is shorter than seq_len and the rows
// or documents missing in the last batch are filled up with token 0 and ignore_label.
class ValidationLoader {
 public:
  // batches: at most so many; 0: all. Throws Error when there is nothing to predict (fewer than two tokens).
  ValidationLoader(TokenDataset dataset, const LoaderOptions& options, int64_t batches);

  int64_t batches() const { return static_cast<int64_t>(begins_.size()); }
  std::vector<Microbatch> batch(int64_t index) const;

 private:
  std::shared_ptr<const StepSource> source_;
  std::vector<int64_t> begins_;  // the first sample of each batch
};

}  // namespace pptrain::data
