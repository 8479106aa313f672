#include "core/tokens/context_split.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "core/base/error.h"

namespace pptrain::tokens {
namespace {

// Adds [begin, end) to ranges; what follows a range of the same row becomes part of it.
void add_range(std::vector<TokenRange>& ranges, TokenRange range, bool same_row) {
  if (same_row && !ranges.empty() && ranges.back().end == range.begin) {
    ranges.back().end = range.end;
  } else {
    ranges.push_back(range);
  }
}

// Keys of `document` before the query `begin`: pieces lie one after the other in their rank's list, so that
// those of a document are one range of it.
struct KeyRange {
  int64_t first = 0, count = 0;
};

KeyRange keys_before(std::span<const DocumentPiece> keys, int64_t begin) {
  KeyRange range;
  for (const DocumentPiece& piece : keys) {
    if (piece.end() > begin) break;
    if (range.count == 0) range.first = piece.local;
    range.count += piece.length;
  }
  return range;
}

// The queries of one block go on where those of the other end, and see the same keys.
bool continues(const AttentionBlock& block, const AttentionBlock& next) {
  return !block.causal && !next.causal && block.document == next.document &&
         block.query + block.rows == next.query && block.key == next.key && block.keys == next.keys;
}

}  // namespace

ContextSplit split_rows(ContextOrder order, int64_t rows, int64_t length, int parts, int part) {
  if (rows < 1 || length < 1 || parts < 1 || part < 0 || part >= parts) {
    throw Error(
        fmt::format("context split: {} rows of {} tokens for rank {} of {}", rows, length, part, parts));
  }
  const int64_t pieces = order == ContextOrder::zigzag ? 2 * int64_t{parts} : parts;
  if (length % pieces != 0) {
    throw Error(fmt::format("context split: rows of {} tokens do not make {} equal pieces", length, pieces));
  }
  const int64_t size = length / pieces;
  ContextSplit split{.part = part,
                     .ranges = std::vector<std::vector<TokenRange>>(static_cast<size_t>(parts))};
  for (int64_t rank = 0; rank < parts; ++rank) {
    std::vector<TokenRange>& ranges = split.ranges[static_cast<size_t>(rank)];
    for (int64_t row = 0; row < rows; ++row) {
      const auto add = [&](int64_t piece, bool same_row) {
        const int64_t begin = row * length + piece * size;
        add_range(ranges, {.begin = begin, .end = begin + size}, same_row);
      };
      add(rank, /*same_row=*/false);
      if (order == ContextOrder::zigzag) add(pieces - 1 - rank, /*same_row=*/true);
    }
  }
  return split;
}

void check_split(const ContextSplit& split, int64_t tokens) {
  std::vector<TokenRange> all;
  for (const auto& ranges : split.ranges) {
    if (!std::ranges::is_sorted(ranges, {}, &TokenRange::begin)) {
      throw Error("context split: the ranges of a rank must ascend");
    }
    all.insert(all.end(), ranges.begin(), ranges.end());
  }
  std::ranges::sort(all, {}, &TokenRange::begin);
  int64_t next = 0;
  for (const TokenRange& range : all) {
    if (range.begin != next || range.end <= range.begin) {
      throw Error(fmt::format("context split: range [{}, {}) should begin at {} and not be empty",
                              range.begin, range.end, next));
    }
    next = range.end;
  }
  if (next != tokens) {
    throw Error(fmt::format("context split: ranges of {} tokens for a list of {}", next, tokens));
  }
}

std::vector<DocumentPiece> document_pieces(const ContextSplit& split, int rank, const Segments& segments) {
  std::vector<DocumentPiece> pieces;
  int64_t local = 0;
  int64_t document = 0;
  for (const TokenRange& range : split.ranges[static_cast<size_t>(rank)]) {
    for (int64_t begin = range.begin; begin < range.end;) {
      while (segments.first(document + 1) <= begin) ++document;
      const int64_t end = std::min(range.end, segments.first(document + 1));
      pieces.push_back({.document = document, .begin = begin, .length = end - begin, .local = local});
      local += end - begin;
      begin = end;
    }
  }
  return pieces;
}

std::vector<AttentionBlock> attention_blocks(std::span<const DocumentPiece> queries,
                                             std::span<const DocumentPiece> keys) {
  std::vector<AttentionBlock> blocks;
  size_t first = 0;  // of the keys of the query's document
  for (const DocumentPiece& query : queries) {
    while (first < keys.size() && keys[first].document < query.document) ++first;
    size_t last = first;
    while (last < keys.size() && keys[last].document == query.document) ++last;
    const auto document_keys = keys.subspan(first, last - first);
    AttentionBlock block{.document = query.document, .query = query.local, .rows = query.length};
    if (const KeyRange seen = keys_before(document_keys, query.begin); seen.count > 0) {
      block.key = seen.first;
      block.keys = seen.count;
      if (!blocks.empty() && continues(blocks.back(), block)) {
        blocks.back().rows += block.rows;
      } else {
        blocks.push_back(block);
      }
    }
    const auto same = std::ranges::find(document_keys, query.begin, &DocumentPiece::begin);
    if (same != document_keys.end()) {
      block.key = same->local;
      block.keys = same->length;
      block.causal = true;
      blocks.push_back(block);
    }
  }
  return blocks;
}

}  // namespace pptrain::tokens
