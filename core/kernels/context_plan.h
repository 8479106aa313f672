// How context-parallel ranks share out token lists, and which of their queries and keys meet. All of it
// follows from the lists' lengths, so that every rank derives the same without a message.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/kernels/attention_block.h"
#include "core/kernels/context_split.h"
#include "core/kernels/segments.h"

namespace pptrain::kernels {

// How a row of tokens is cut. `contiguous`: into as many pieces as there are ranks, one for each, in order.
// `zigzag`: into twice as many, of which rank c of n gets numbers c and 2n - 1 - c: an early piece, whose
// queries see few keys, and a late one, so that all ranks have as much causal attention to compute, and as
// much of it with the keys of each other rank (Llama 3, arXiv 2407.21783, section 3.3.2).
enum class ContextOrder { zigzag, contiguous };

// Of a list of `rows` rows of `length` tokens each, for rank `part` of `parts`. Throws Error unless the
// pieces of a row come out equal.
ContextSplit split_rows(ContextOrder order, int64_t rows, int64_t length, int parts, int part);

// Throws Error unless the ranges of all ranks together hold each of `tokens` tokens once, and each rank's
// ascend.
void check_split(const ContextSplit& split, int64_t tokens);

// Tokens [begin, begin + length) of the whole list, all of one document, which lie at `local` in the list of
// the rank that holds them.
struct DocumentPiece {
  int64_t document = 0;
  int64_t begin = 0;
  int64_t length = 0;
  int64_t local = 0;

  int64_t end() const { return begin + length; }
  bool operator==(const DocumentPiece&) const = default;
};

// What rank `rank` holds, in the order of the list, cut where documents begin.
std::vector<DocumentPiece> document_pieces(const ContextSplit& split, int rank, const Segments& segments);

// The causal attention of one rank's queries to one rank's keys, within documents: blocks in the order of the
// queries, and of one query full ones first. Pieces are of one split, so that two are the same or apart.
std::vector<AttentionBlock> attention_blocks(std::span<const DocumentPiece> queries,
                                             std::span<const DocumentPiece> keys);

}  // namespace pptrain::kernels
