// How context-parallel ranks shard token lists, and which of their queries and keys meet. All of it follows
// from the lists' lengths, so that every rank derives the same without a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/data/tokens/segments.h"
#include "core/data/tokens/token_range.h"

namespace pptrain::tokens {

// A rank's own list is its ranges of a microbatch's whole list, one after the other. Every token of the whole
// list is in one range. Sequence slices, which one rank takes one after the other, are parts as ranks are.
struct ContextSplit {
  int part = 0;                                 // this rank, or slice
  std::vector<std::vector<TokenRange>> ranges;  // [rank], ascending
  int list = -1;                                // of slices: which list of the step they are of

  bool of_slices() const { return list >= 0; }
  int parts() const { return static_cast<int>(ranges.size()); }
  const std::vector<TokenRange>& own() const { return ranges[static_cast<size_t>(part)]; }
  int64_t tokens(int rank) const {
    int64_t sum = 0;
    for (const TokenRange& range : ranges[static_cast<size_t>(rank)]) sum += range.length();
    return sum;
  }
};

// How a row of tokens is cut. `contiguous`: into as many pieces as there are ranks, one for each, in order.
// `zigzag`: into twice as many; rank c of n gets numbers c and 2n - 1 - c. The queries of the early piece see
// few keys, the queries of the late one many. So all ranks compute as much causal attention, and as much of
// it with the keys of each other rank (Llama 3, arXiv 2407.21783, section 3.3.2).
enum class ContextOrder { zigzag, contiguous };

// Splits a list of `rows` rows of `length` tokens each, for rank `part` of `parts`. Throws Error unless the
// pieces of a row come out equal.
ContextSplit split_rows(ContextOrder order, int64_t rows, int64_t length, int parts, int part);

// Splits a list of any length as if it were a row; pieces may differ by one token. Throws Error if there are
// fewer tokens than pieces.
ContextSplit split_list(ContextOrder order, int64_t tokens, int parts, int part);

// Sequence slices of a list, one range each, in order, that cost alike (SlimPipe, arXiv 2504.14519). The
// token at place i of its document costs 1 + 2 i / attention_length: in a document of `attention_length`
// tokens attention costs as much as all else. Cut at multiples of 32 tokens if slices are long. Each has
// `least` tokens or more; throws Error if the list is too short for that.
ContextSplit split_by_cost(const Segments& segments, int slices, int64_t attention_length, int64_t least,
                           int list);

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

// The tokens of rank `rank`, in the order of the list, cut at the beginnings of documents.
std::vector<DocumentPiece> document_pieces(const ContextSplit& split, int rank, const Segments& segments);

// The attention of some queries to some keys, for ranks that hold the keys of a document a part at a time.
// Queries [query, query + rows) belong to one token list and keys [key, key + keys) to another one, or the
// same. In a list of blocks, those of one document lie one after the other, and blocks of different documents
// have neither queries nor keys in common.
struct AttentionBlock {
  int64_t document = 0;
  int64_t query = 0, rows = 0;
  int64_t key = 0, keys = 0;
  // The queries and keys are the same tokens: rows == keys, and row i sees the first i + 1 keys. Otherwise
  // every row sees every key, or with a window every key within it.
  bool causal = false;
  // With a window: tokens from the first key to the first query, of which both follow each other without
  // gaps. Row i sees keys (distance + i - window, distance + i].
  int64_t distance = 0;

  // Pairs of a query and a key that it sees, the diagonal counted by half: what a causal row sees on average.
  // window: 0 for none.
  double pairs(int64_t window = 0) const;
  bool operator==(const AttentionBlock&) const = default;
};

// The causal attention of one rank's queries to one rank's keys, within documents: blocks in the order of the
// queries, and of one query full ones first. Pieces are of one split, so that two are the same or apart. With
// a window (0: none) a query sees that many keys, the last of them its own, and blocks without a pair are
// left out.
std::vector<AttentionBlock> attention_blocks(std::span<const DocumentPiece> queries,
                                             std::span<const DocumentPiece> keys, int64_t window = 0);

}  // namespace pptrain::tokens
