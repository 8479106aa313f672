#include "core/data/tokens/context_split.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"

namespace pptrain::tokens {
namespace {

// The queries of `next` begin at the end of `block`'s queries, and see the same keys.
bool continues(const AttentionBlock& block, const AttentionBlock& next) {
  return !block.causal && !next.causal && block.document == next.document &&
         block.query + block.rows == next.query && block.key == next.key && block.keys == next.keys;
}

// Adds the block of all keys before the query, or its rows to the last block.
void add_full(const DocumentPiece& query, std::span<const DocumentPiece> keys,
              std::vector<AttentionBlock>& blocks) {
  AttentionBlock block{.document = query.document, .query = query.local, .rows = query.length};
  // Pieces lie one after the other in their rank's list, so that a document's pieces are one range of it.
  for (const DocumentPiece& piece : keys) {
    if (piece.end() > query.begin) break;
    if (block.keys == 0) block.key = piece.local;
    block.keys += piece.length;
  }
  if (block.keys == 0) return;
  if (!blocks.empty() && continues(blocks.back(), block)) {
    blocks.back().rows += block.rows;
  } else {
    blocks.push_back(block);
  }
}

// Adds a block for each piece of keys before the query, less the first keys and the last queries that the
// window parts from all others.
void add_within(const DocumentPiece& query, std::span<const DocumentPiece> keys, int64_t window,
                std::vector<AttentionBlock>& blocks) {
  for (const DocumentPiece& piece : keys) {
    if (piece.end() > query.begin) break;
    const int64_t distance = query.begin - piece.begin;
    const int64_t unseen = std::max<int64_t>(0, distance + 1 - window);
    AttentionBlock block{.document = query.document,
                         .query = query.local,
                         .rows = query.length,
                         .key = piece.local + unseen,
                         .keys = piece.length - unseen,
                         .distance = distance - unseen};
    block.rows = std::min(block.rows, block.keys - 1 + window - block.distance);
    if (block.keys > 0) blocks.push_back(block);
  }
}

// The sum over rows of the keys before key offset + row + 1.
double pairs_up_to(const AttentionBlock& block, int64_t offset) {
  // 1 + 2 + ... + `end`, if no number exceeds the keys.
  const auto sum = [keys = static_cast<double>(block.keys)](int64_t end) {
    const auto x = static_cast<double>(std::max<int64_t>(end, 0));
    return x <= keys ? x * (x + 1) / 2 : keys * (keys + 1) / 2 + keys * (x - keys);
  };
  return sum(offset + block.rows) - sum(offset);
}

int64_t pieces_of(ContextOrder order, int parts) {
  return order == ContextOrder::zigzag ? 2 * int64_t{parts} : parts;
}

// Pieces of a row differ by one token at most.
ContextSplit cut_rows(ContextOrder order, int64_t rows, int64_t length, int parts, int part) {
  const int64_t pieces = pieces_of(order, parts);
  ContextSplit split{.part = part,
                     .ranges = std::vector<std::vector<TokenRange>>(static_cast<size_t>(parts))};
  for (int64_t rank = 0; rank < parts; ++rank) {
    std::vector<TokenRange>& ranges = split.ranges[static_cast<size_t>(rank)];
    for (int64_t row = 0; row < rows; ++row) {
      const auto piece = [&](int64_t number) {
        return TokenRange{.begin = row * length + length * number / pieces,
                          .end = row * length + length * (number + 1) / pieces};
      };
      ranges.push_back(piece(rank));
      if (order == ContextOrder::contiguous) continue;
      const TokenRange late = piece(pieces - 1 - rank);
      if (late.begin == ranges.back().end) {
        ranges.back().end = late.end;
      } else {
        ranges.push_back(late);
      }
    }
  }
  return split;
}

}  // namespace

ContextSplit split_rows(ContextOrder order, int64_t rows, int64_t length, int parts, int part) {
  if (rows < 1 || length < 1 || parts < 1 || part < 0 || part >= parts) {
    throw Error(
        fmt::format("context split: {} rows of {} tokens for rank {} of {}", rows, length, part, parts));
  }
  const int64_t pieces = pieces_of(order, parts);
  if (length % pieces != 0) {
    throw Error(fmt::format("context split: rows of {} tokens do not make {} equal pieces", length, pieces));
  }
  return cut_rows(order, rows, length, parts, part);
}

ContextSplit split_list(ContextOrder order, int64_t tokens, int parts, int part) {
  const int64_t pieces = pieces_of(order, parts);
  if (parts < 1 || part < 0 || part >= parts || tokens < pieces) {
    throw Error(fmt::format("a list of {} tokens does not make {} pieces for rank {} of {}", tokens, pieces,
                            part, parts));
  }
  return cut_rows(order, 1, tokens, parts, part);
}

namespace {

// As split_by_cost() counts.
double document_cost(const Segments& segments, int64_t document, double attention_length) {
  const auto length = static_cast<double>(segments.length(document));
  return length + length * length / attention_length;
}

// Tokens of the list before which it has cost `cost`, as split_by_cost() counts.
int64_t tokens_of_cost(const Segments& segments, double attention_length, double cost) {
  for (int64_t document = 0; document < segments.documents(); ++document) {
    const double whole = document_cost(segments, document, attention_length);
    if (cost < whole) {
      // x + x^2 / a = cost
      const double half = attention_length / 2;
      return segments.first(document) +
             static_cast<int64_t>(std::sqrt(half * half + attention_length * cost) - half);
    }
    cost -= whole;
  }
  return segments.tokens();
}

}  // namespace

ContextSplit split_by_cost(const Segments& segments, int slices, int64_t attention_length, int64_t least,
                           int list) {
  constexpr int64_t multiple = 32;
  const int64_t tokens = segments.tokens();
  if (slices < 1 || least < 1 || tokens < slices * least)
    throw Error(fmt::format("a list of {} tokens does not make {} sequence slices of {} or more", tokens,
                            slices, least));
  const auto squares = static_cast<double>(attention_length);
  double all = 0;
  for (int64_t document = 0; document < segments.documents(); ++document)
    all += document_cost(segments, document, squares);
  const int64_t step = tokens >= 4 * multiple * slices ? multiple : 1;
  ContextSplit split{.part = 0, .ranges = {}, .list = list};
  int64_t begin = 0;
  for (int slice = 1; slice <= slices; ++slice) {
    int64_t end = tokens_of_cost(segments, squares, all * slice / slices) / step * step;
    end = slice == slices ? tokens : std::clamp(end, begin + least, tokens - (slices - slice) * least);
    split.ranges.push_back({{.begin = begin, .end = end}});
    begin = end;
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
                                             std::span<const DocumentPiece> keys, int64_t window) {
  std::vector<AttentionBlock> blocks;
  size_t first = 0;  // of the keys of the query's document
  for (const DocumentPiece& query : queries) {
    while (first < keys.size() && keys[first].document < query.document) ++first;
    size_t last = first;
    while (last < keys.size() && keys[last].document == query.document) ++last;
    const auto document_keys = keys.subspan(first, last - first);
    if (window == 0) {
      add_full(query, document_keys, blocks);
    } else {
      add_within(query, document_keys, window, blocks);
    }
    const auto same = std::ranges::find(document_keys, query.begin, &DocumentPiece::begin);
    if (same == document_keys.end()) continue;
    blocks.push_back({.document = query.document,
                      .query = query.local,
                      .rows = query.length,
                      .key = same->local,
                      .keys = same->length,
                      .causal = true});
  }
  return blocks;
}

double AttentionBlock::pairs(int64_t window) const {
  if (window == 0) return static_cast<double>(rows) * static_cast<double>(keys) / (causal ? 2 : 1);
  const double seen = pairs_up_to(*this, distance) - pairs_up_to(*this, distance - window);
  return causal ? seen - static_cast<double>(rows) / 2 : seen;
}

}  // namespace pptrain::tokens
