// The data of one microbatch for a stage.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/data/tokens/context_split.h"
#include "core/data/tokens/segments.h"

namespace pptrain::data {

// Labels with this value do not count.
inline constexpr int64_t ignore_label = -100;

// A list of tokens: the documents, or rows, of the microbatch one after the other. Context-parallel ranks
// shard the list: then T is the number of this rank's tokens, and `segments` describes the whole list. Every
// rank derives its microbatches from the same sampler, so every rank knows all but the ids without a message.
// `tokens` are defined on ranks that hold the first stage, labels on ranks that hold the last stage; the rest
// everywhere.
struct Microbatch {
  at::Tensor tokens;        // int64 [T]
  at::Tensor labels;        // int64 [T]
  at::Tensor positions;     // int32 [T]: each token's place in its document
  at::Tensor filling = {};  // bool [T]: belongs to no document; undefined: none
  // int64 [T], on the host, with LoaderOptions::need_places: for each valid label, which token of its stream
  // it is.
  at::Tensor places = {};
  tokens::Segments segments;  // places of the documents
  // For each document, the tokens of its text up to here: without filling at its end, and with tokens that a
  // cache holds. Empty: as many as the document has in the list.
  std::vector<int64_t> text_lengths = {};
  std::shared_ptr<const tokens::ContextSplit> context = {};  // null: the whole list is here
  int64_t targets = 0;                                       // valid tokens of this data rank
  // Over the microbatches with this number on all data ranks: tokens of documents, and valid tokens.
  int64_t global_tokens = 0;
  int64_t global_targets = 0;

  int64_t text_length(int64_t document) const {
    return text_lengths.empty() ? segments.length(document) : text_lengths[static_cast<size_t>(document)];
  }

  // Not a later slice of a list that comes in sequence slices.
  bool begins_list() const { return !context || !context->of_slices() || context->part == 0; }

  // T.
  int64_t token_count() const { return context ? context->tokens(context->part) : segments.tokens(); }
};

// --- The part of a microbatch that a context-parallel rank holds.

// The part that rank split->part has of `whole`, a microbatch without a split whose documents may have any
// lengths. It has the tokens, labels and filling (if defined) and positions of its ranges, on their device.
// Documents, targets and global counts stay the whole list's. Throws Error if the split is not one of this
// list.
Microbatch part_of(const Microbatch& whole, std::shared_ptr<const tokens::ContextSplit> split);

// The sequence slices (tokens::split_by_cost) of `whole`, the microbatch of this number of its step, of
// `least` tokens or more; each knows all of them. The first slice has the whole list's `targets`, the others
// 0; every slice has the whole list's global counts.
std::vector<Microbatch> cut_in_slices(const Microbatch& whole, int slices, int64_t attention_length,
                                      int64_t least, int number);

}  // namespace pptrain::data
