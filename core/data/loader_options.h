// What of a step's data one rank gets, and how documents become microbatches.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "core/config/word.h"
#include "core/tokens/context_split.h"

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
  bool need_tokens = true;  // this rank holds the first stage
  bool need_labels = true;  // this rank holds the last stage
  at::Device device = at::kCPU;

  // Rows of a step over all data ranks: D * m * b.
  int64_t rows_per_step() const { return dp_size * microbatches * micro_batch_size; }
  // Are documents kept whole? Else rows are cut from the stream.
  bool whole_documents() const { return packing != Packing::sequential || lengths != Lengths::fixed; }
};

}  // namespace pptrain::data
