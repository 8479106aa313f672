// What of a step's data one rank gets, and what one microbatch brings to a stage.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/config/word.h"
#include "core/data/balance.h"
#include "core/tokens/context_split.h"
#include "core/tokens/segments.h"

namespace pptrain::data {

using config::Lengths;
using config::Packing;

struct LoaderOptions {
  int64_t seq_len = 0;
  int64_t micro_batch_size = 1;  // b: rows of one microbatch on one data rank
  int64_t microbatches = 1;      // m: microbatches of a step
  int64_t dp_size = 1;           // D
  int64_t dp_rank = 0;
  // Context-parallel ranks, which share out each list: this one gets its pieces of the tokens, of the labels,
  // which are those of the whole list, and of the positions.
  int cp_size = 1;
  int cp_rank = 0;
  tokens::ContextOrder cp_order = tokens::ContextOrder::zigzag;
  // The token that ends a document, where the files have no index of documents.
  std::optional<int64_t> document_end = std::nullopt;
  Packing packing = Packing::sequential;
  Lengths lengths = Lengths::fixed;
  int64_t pad_to_multiple_of = 128;  // of padded
  int64_t tp_size = 1;               // ranks that share out a list's rows, of which each gets one at least
  // The length at which a document's attention costs as much as all else that its tokens do: microbatches of
  // exact lengths are balanced by it.
  int64_t attention_length = int64_t{1} << 24;
  // When a step of exact lengths ends; none: not known.
  StepEnd step_end = {};
  // Data ranks wait for each other in every pass: a microbatch then counts as many tokens and squares as that
  // of its number has on any data rank.
  bool in_step = false;
  bool balance_schedule = false;  // by step_end, else microbatches are to cost alike
  int sequence_slices = 1;        // into which a training step's microbatches are cut
  bool need_tokens = true;        // this rank holds the first stage
  bool need_labels = true;        // this rank holds the last stage
  bool need_places = false;       // where labels lie in their stream
  at::Device device = at::kCPU;

  // Rows of a step over all data ranks: D * m * b.
  int64_t rows_per_step() const { return dp_size * microbatches * micro_batch_size; }
  // Are documents kept whole? Else rows are cut from the stream.
  bool whole_documents() const { return packing != Packing::sequential || lengths != Lengths::fixed; }
};

// Labels with this value do not count.
inline constexpr int64_t ignore_label = -100;

// A list of tokens: the documents, or rows, of the microbatch one after the other. Context-parallel ranks
// hold a part of the list each: then T is the number of this rank's tokens, and `segments` describes the
// whole list. Every rank derives its microbatches from the same sampler, so all but the ids is known
// everywhere without a handshake. tokens are defined on ranks that hold the first stage, labels where the
// last stage is; the rest everywhere.
struct Microbatch {
  at::Tensor tokens;        // int64 [T]
  at::Tensor labels;        // int64 [T]
  at::Tensor positions;     // int32 [T]: each token's place in its document
  at::Tensor filling = {};  // bool [T]: of no document; undefined: none is
  // int64 [T], on the host, where need_places: which token of its stream each label that counts is.
  at::Tensor places = {};
  tokens::Segments segments;                                 // where the documents lie
  std::shared_ptr<const tokens::ContextSplit> context = {};  // null: the whole list is here
  int64_t targets = 0;                                       // labels of this data rank that count
  // Of the microbatches of this number of all data ranks: tokens of documents, and labels that count.
  int64_t global_tokens = 0;
  int64_t global_targets = 0;

  // T.
  int64_t token_count() const { return context ? context->tokens(context->part) : segments.tokens(); }
};

// A microbatch while it is made on the host.
class TokenList {
 public:
  // Of `size` tokens: 0 with ignore_label, until they are written. `options` must outlive it.
  TokenList(const LoaderOptions& options, int64_t size);

  std::span<int64_t> tokens(int64_t first, int64_t count);
  std::span<int64_t> labels(int64_t first, int64_t count);
  // The labels from `first` on are the tokens from `place` on of their stream.
  void set_places(int64_t first, int64_t count, int64_t place);

  // The tokens behind the document before: `length` of them, and then `filling`, whose positions are 0.
  void add_document(int64_t length, int64_t filling = 0);

  // What this rank needs of the list, on the options' device, without targets and global numbers. `split`:
  // how context-parallel ranks share it; null where there is one.
  Microbatch finish(std::shared_ptr<const tokens::ContextSplit> split);

 private:
  const LoaderOptions& options_;
  at::Tensor tokens_, labels_, positions_;
  at::Tensor places_;   // undefined where they are not needed
  at::Tensor filling_;  // undefined: there is none so far
  std::vector<int32_t> starts_{0};
};

// --- The part of a microbatch that a context-parallel rank holds.

// What rank split->part has of `whole`, a microbatch without a split whose documents may have any lengths:
// tokens, labels and filling (where they are defined) and positions of its ranges, on their device;
// documents, targets and global counts stay those of the whole list. Throws Error for a split that is not one
// of this list.
Microbatch part_of(const Microbatch& whole, std::shared_ptr<const tokens::ContextSplit> split);

// The sequence slices (tokens::split_by_cost) of `whole`, the microbatch of this number of its step; each
// knows all of them. Targets and global counts are those of the whole list in the first slice, 0 in others.
std::vector<Microbatch> cut_in_slices(const Microbatch& whole, const LoaderOptions& options, int number);

// How ranks share out a list of any length, as if it were a row (tokens::split_rows) but for pieces that
// differ by one token. Throws Error where there are fewer tokens than pieces.
tokens::ContextSplit split_list(tokens::ContextOrder order, int64_t tokens, int parts, int part);

}  // namespace pptrain::data
