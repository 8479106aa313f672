// What one microbatch brings to a stage.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/data/loader_options.h"
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

// A microbatch while it is made on the host.
class TokenList {
 public:
  // Of `size` tokens: 0 with ignore_label, until they are written. `options` must outlive it.
  TokenList(const LoaderOptions& options, int64_t size);

  std::span<int64_t> tokens(int64_t first, int64_t count);
  std::span<int64_t> labels(int64_t first, int64_t count);

  // The tokens behind the document before: `length` of them, and then `filling`, whose positions are 0.
  void add_document(int64_t length, int64_t filling = 0);

  // What this rank needs of the list, on the options' device, without targets and global numbers. `split`:
  // how context-parallel ranks share it; null where there is one.
  Microbatch finish(std::shared_ptr<const tokens::ContextSplit> split);

 private:
  const LoaderOptions& options_;
  at::Tensor tokens_, labels_, positions_;
  at::Tensor filling_;  // undefined: there is none so far
  std::vector<int32_t> starts_{0};
};

// --- The part of a microbatch that a context-parallel rank holds.

// What rank split->part has of `whole`, a microbatch without a split whose documents may have any lengths:
// tokens, labels and filling (where they are defined) and positions of its ranges, on their device;
// documents, targets and global counts stay those of the whole list. Throws Error for a split that is not one
// of this list.
Microbatch part_of(const Microbatch& whole, std::shared_ptr<const tokens::ContextSplit> split);

// How ranks share out a list of any length, as if it were a row (tokens::split_rows) but for pieces that
// differ by one token. Throws Error where there are fewer tokens than pieces.
tokens::ContextSplit split_list(tokens::ContextOrder order, int64_t tokens, int parts, int part);

}  // namespace pptrain::data
