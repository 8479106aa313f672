// What one microbatch brings to a stage.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/tokens/context_split.h"
#include "core/tokens/segments.h"

namespace pptrain::data {

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
  // int64 [T], on the host, where LoaderOptions::need_places: which token of its stream each label that
  // counts is.
  at::Tensor places = {};
  tokens::Segments segments;  // where the documents lie
  // Of each document, the tokens of its text up to here: without filling behind it, and with those that a
  // cache holds. Empty: as many as the document has in the list.
  std::vector<int64_t> text_lengths = {};
  std::shared_ptr<const tokens::ContextSplit> context = {};  // null: the whole list is here
  int64_t targets = 0;                                       // labels of this data rank that count
  // Of the microbatches of this number of all data ranks: tokens of documents, and labels that count.
  int64_t global_tokens = 0;
  int64_t global_targets = 0;

  int64_t text_length(int64_t document) const {
    return text_lengths.empty() ? segments.length(document) : text_lengths[static_cast<size_t>(document)];
  }

  // T.
  int64_t token_count() const { return context ? context->tokens(context->part) : segments.tokens(); }
};

// --- The part of a microbatch that a context-parallel rank holds.

// What rank split->part has of `whole`, a microbatch without a split whose documents may have any lengths:
// tokens, labels and filling (where they are defined) and positions of its ranges, on their device;
// documents, targets and global counts stay those of the whole list. Throws Error for a split that is not one
// of this list.
Microbatch part_of(const Microbatch& whole, std::shared_ptr<const tokens::ContextSplit> split);

// The sequence slices (tokens::split_by_cost) of `whole`, the microbatch of this number of its step, of
// `least` tokens or more; each knows all of them. Targets are those of the whole list in the first slice, 0
// in others; global counts are those of the whole list in every slice.
std::vector<Microbatch> cut_in_slices(const Microbatch& whole, int slices, int64_t attention_length,
                                      int64_t least, int number);

}  // namespace pptrain::data
