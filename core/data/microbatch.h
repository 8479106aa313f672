// What one microbatch brings to a stage.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

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
  at::Tensor tokens;                                         // int64 [T]
  at::Tensor labels;                                         // int64 [T]
  at::Tensor positions;                                      // int32 [T]: each token's place in its document
  at::Tensor filling = {};                                   // bool [T]: of no document; undefined: none is
  tokens::Segments segments;                                 // where the documents lie
  std::shared_ptr<const tokens::ContextSplit> context = {};  // null: the whole list is here
  int64_t targets = 0;                                       // labels of this data rank that count
  // Of the microbatches of this number of all data ranks: tokens of documents, and labels that count.
  int64_t global_tokens = 0;
  int64_t global_targets = 0;

  // T.
  int64_t token_count() const { return context ? context->tokens(context->part) : segments.tokens(); }
};

}  // namespace pptrain::data
