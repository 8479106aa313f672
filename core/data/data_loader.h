// Microbatches of a step, for one rank. Every rank derives the same assignment from the job alone, so the
// ranks of a pipeline, and ranks that shard rows, agree on every microbatch without a message.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/config/word.h"
#include "core/data/microbatch.h"
#include "core/data/sampler.h"
#include "core/data/token_dataset.h"
#include "core/data/tokens/context_split.h"

namespace pptrain::data {

using config::Lengths;
using config::Packing;

// When the step of a data rank ends, in any unit, by what each of its microbatches has: tokens, and the sum
// of its documents' squared lengths.
using StepEnd = std::function<int64_t(std::span<const int64_t> tokens, std::span<const int64_t> squares)>;

struct LoaderOptions {
  int64_t seq_len = 0;
  int64_t micro_batch_size = 1;  // b: rows of one microbatch on one data rank
  int64_t microbatches = 1;      // m: microbatches of a step
  int64_t dp_size = 1;           // D
  int64_t dp_rank = 0;
  // Context-parallel ranks, which shard each list. This one gets its slices of the tokens, of the positions
  // and of the whole list's labels.
  int cp_size = 1;
  int cp_rank = 0;
  tokens::ContextOrder cp_order = tokens::ContextOrder::zigzag;
  // The token that ends a document, if the files have no index of documents.
  std::optional<int64_t> document_end = std::nullopt;
  Packing packing = Packing::sequential;
  Lengths lengths = Lengths::fixed;
  int64_t pad_to_multiple_of = 128;  // of padded
  int64_t tp_size = 1;               // ranks that shard a list's rows; each gets at least one
  // The length at which a document's attention costs as much as all else that its tokens do: microbatches of
  // exact lengths are balanced by it.
  int64_t attention_length = int64_t{1} << 24;
  // When a step of exact lengths ends; none: not known.
  StepEnd step_end = {};
  // Data ranks wait for each other in every pass: a microbatch then counts the most tokens and squares that
  // the microbatch with its number has on any data rank.
  bool in_step = false;
  bool balance_schedule = false;  // by step_end, else microbatches are to cost alike
  int sequence_slices = 1;        // into which a training step's microbatches are cut
  bool need_tokens = true;        // this rank holds the first stage
  bool need_labels = true;        // this rank holds the last stage
  bool need_places = false;       // places of labels in their stream
  at::Device device = at::kCPU;

  // Rows of a step over all data ranks: D * m * b.
  int64_t rows_per_step() const { return dp_size * microbatches * micro_batch_size; }
  // Into how many parts the ranks and slices cut a list.
  int64_t parts() const { return int64_t{cp_size} * tp_size * sequence_slices; }
  // Are documents kept whole? Else rows are cut from the stream.
  bool whole_documents() const { return packing != Packing::sequential || lengths != Lengths::fixed; }
};

// One step's data for one rank. The numbers are over all data ranks.
struct Step {
  std::vector<Microbatch> microbatches;  // or their slices, in order, if the options cut them
  int64_t samples = 0;                   // that it took
  int64_t targets = 0;                   // valid tokens
  int64_t tokens = 0;                    // of all microbatches, filling included
  int64_t padding = 0;                   // tokens of filling
  int64_t end = 0;                       // of the slowest data rank, by options.step_end
};

// How a stream becomes steps: rows cut from it, or whole documents.
class StepSource;

// One of the streams that training mixes.
struct WeightedStream {
  TokenDataset tokens;
  double weight = 1;  // of its samples among all
};

// The order: the blend of weights (sampler.h) says which stream sample n of the run belongs to. It is the
// next sample of that stream's sampler, which has its own epochs. So a resume needs only `next_sample`.
//
// Rows cut from the stream: a step takes the next D*m*b samples in this order. Microbatch j consists of the
// step's samples [j*D*b, (j+1)*D*b); data rank d takes the d-th contiguous b of them.
//
// Whole documents (options.whole_documents()): a sample is a document, or a slice of a long one
// (DocumentSlices), and a step takes the next ones of the order that it has room for (document_source.cpp).
class DataLoader {
 public:
  // Throws Error if a stream is shorter than one sample, saying how many tokens are needed. Also throws if
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

// Validation: samples in file order, divided into batches as steps are. Every token except the first (of each
// document, if documents are known) is predicted once. A last sample shorter than seq_len is filled up with
// token 0 and ignore_label, and so are rows or documents missing in the last batch.
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
