// How rows are divided over context-parallel ranks, and which of their queries and keys meet.
#include "core/data/tokens/context_split.h"

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "test/core/data/tokens/random_split.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::tokens;
using namespace pptrain::test;

namespace {

using Ranges = std::vector<TokenRange>;

std::vector<AttentionBlock> blocks_of(const ContextSplit& split, const Segments& segments, int queries,
                                      int keys, int64_t window = 0) {
  return attention_blocks(document_pieces(split, queries, segments), document_pieces(split, keys, segments),
                          window);
}

double pairs(const std::vector<AttentionBlock>& blocks, int64_t window = 0) {
  double sum = 0;
  for (const AttentionBlock& block : blocks) sum += block.pairs(window);
  return sum;
}

// The place in the whole list of each token of a rank's list.
std::vector<int64_t> places(const ContextSplit& split, int rank) {
  std::vector<int64_t> result;
  for (const TokenRange& range : split.ranges[static_cast<size_t>(rank)]) {
    for (int64_t i = range.begin; i < range.end; ++i) result.push_back(i);
  }
  return result;
}

// How often blocks pair each query and key, by places in the whole list.
using Counts = std::map<std::pair<int64_t, int64_t>, int>;
void count(const std::vector<AttentionBlock>& blocks, int64_t window, const std::vector<int64_t>& queries,
           const std::vector<int64_t>& keys, Counts& counts) {
  for (const AttentionBlock& b : blocks) {
    for (int64_t i = 0; i < b.rows; ++i) {
      const int64_t first = window == 0 ? 0 : std::max<int64_t>(0, b.distance + i + 1 - window);
      for (int64_t j = first; j < (b.causal ? i + 1 : b.keys); ++j) {
        ++counts[{queries.at(static_cast<size_t>(b.query + i)), keys.at(static_cast<size_t>(b.key + j))}];
      }
    }
  }
}

}  // namespace

TEST_CASE("zigzag gives each rank an early and a late piece of every row") {
  const ContextSplit split = split_rows(ContextOrder::zigzag, 2, 12, 3, 1);
  CHECK(split.part == 1);
  REQUIRE(split.parts() == 3);
  CHECK(split.ranges[0] == Ranges{{0, 2}, {10, 12}, {12, 14}, {22, 24}});
  CHECK(split.own() == Ranges{{2, 4}, {8, 10}, {14, 16}, {20, 22}});
  CHECK(split.ranges[2] == Ranges{{4, 8}, {16, 20}});  // adjacent chunks are joined
  for (int rank = 0; rank < 3; ++rank) CHECK(split.tokens(rank) == 8);
  CHECK_NOTHROW(check_split(split, 24));
  CHECK(split_rows(ContextOrder::contiguous, 2, 6, 3, 0).ranges[1] == Ranges{{2, 4}, {8, 10}});
}

TEST_CASE("rows that do not make equal pieces, and lists that are not shared out, are refused") {
  CHECK_THROWS_WITH(split_rows(ContextOrder::zigzag, 1, 10, 2, 0),
                    "context split: rows of 10 tokens do not make 4 equal pieces");
  CHECK_THROWS_AS(split_rows(ContextOrder::contiguous, 1, 9, 2, 0), Error);
  CHECK_THROWS_AS(split_rows(ContextOrder::contiguous, 1, 8, 2, 2), Error);
  CHECK_THROWS_AS(split_rows(ContextOrder::contiguous, 0, 8, 2, 0), Error);
  CHECK_THROWS_AS(check_split({.part = 0, .ranges = {{{0, 2}}, {{3, 4}}}}, 4), Error);
  CHECK_THROWS_AS(check_split({.part = 0, .ranges = {{{0, 2}}, {{1, 4}}}}, 4), Error);
  CHECK_THROWS_AS(check_split({.part = 0, .ranges = {{{2, 4}, {0, 2}}}}, 4), Error);
  CHECK_THROWS_AS(check_split({.part = 0, .ranges = {{{0, 2}}, {{2, 4}}}}, 5), Error);
}

TEST_CASE("pieces end where documents and ranges do") {
  const Segments segments = make_segments({0, 3, 4, 12}, at::kCPU);
  const ContextSplit split = split_rows(ContextOrder::zigzag, 1, 12, 2, 0);  // [0, 3) [9, 12); [3, 9)
  CHECK(document_pieces(split, 0, segments) ==
        std::vector<DocumentPiece>{{.document = 0, .begin = 0, .length = 3, .local = 0},
                                   {.document = 2, .begin = 9, .length = 3, .local = 3}});
  CHECK(document_pieces(split, 1, segments) ==
        std::vector<DocumentPiece>{{.document = 1, .begin = 3, .length = 1, .local = 0},
                                   {.document = 2, .begin = 4, .length = 5, .local = 1}});
  CHECK(blocks_of(split, segments, 1, 0).empty());
  CHECK(blocks_of(split, segments, 0, 1) ==
        std::vector<AttentionBlock>{{.document = 2, .query = 3, .rows = 3, .key = 1, .keys = 5}});
}

TEST_CASE("blocks of all ranks pair each query once with each key that it sees, and with no other") {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const int ranks = static_cast<int>(random() % 5) + 1;
    const Segments documents = random_documents(random, 8 * ranks);
    const ContextSplit split = round % 2 == 0
                                   ? split_rows(ContextOrder::zigzag, 1, documents.tokens(), ranks, 0)
                                   : random_split(random, documents.tokens(), ranks);
    REQUIRE_NOTHROW(check_split(split, documents.tokens()));
    const int64_t window = round % 4 < 2 ? 0 : 1 + round % 13;
    Counts actual, expected;
    double all = 0;
    for (int q = 0; q < ranks; ++q) {
      for (int k = 0; k < ranks; ++k) {
        const auto blocks = blocks_of(split, documents, q, k, window);
        count(blocks, window, places(split, q), places(split, k), actual);
        all += pairs(blocks, window);
      }
    }
    for (int64_t d = 0; d < documents.documents(); ++d) {
      for (int64_t i = documents.first(d); i < documents.first(d + 1); ++i) {
        for (int64_t j = documents.first(d); j <= i; ++j)
          if (window == 0 || j > i - window) expected[{i, j}] = 1;
      }
    }
    REQUIRE(actual == expected);
    REQUIRE(all == static_cast<double>(expected.size()) - static_cast<double>(documents.tokens()) / 2);
  }
}

TEST_CASE("zigzag gives each rank as much attention as any other, at every step of a ring") {
  for (const int ranks : {2, 3, 4, 8}) {
    const int64_t rows = 3, length = 16 * ranks;
    const ContextSplit split = split_rows(ContextOrder::zigzag, rows, length, ranks, 0);
    const Segments segments = equal_segments(rows, length, at::kCPU);
    for (int step = 0; step < ranks; ++step) {
      for (int r = 0; r < ranks; ++r) {
        const auto blocks = blocks_of(split, segments, r, (r - step + ranks) % ranks);
        // Two chunks of 8 tokens by one of 8, in any form.
        CHECK(pairs(blocks) == static_cast<double>(rows * 2 * 8 * 8));
        // One block per row with another rank's keys: adjacent chunks are taken together.
        if (step > 0) CHECK(static_cast<int64_t>(blocks.size()) == rows);
      }
    }
  }
  // With contiguous ranges the last rank has several times as much work as the first.
  const ContextSplit plain = split_rows(ContextOrder::contiguous, 1, 64, 4, 0);
  const Segments segments = equal_segments(1, 64, at::kCPU);
  double first = 0, last = 0;
  for (int k = 0; k < 4; ++k) {
    first += pairs(blocks_of(plain, segments, 0, k));
    last += pairs(blocks_of(plain, segments, 3, k));
  }
  CHECK(last == 7 * first);
}

TEST_CASE("sequence slices cost alike and hold every token once, in order") {
  std::mt19937 random(9);
  for (int round = 0; round < 100; ++round) {
    const int slices = static_cast<int>(random() % 7) + 1;
    const Segments documents = random_documents(random, 600 * slices);
    const int64_t length = 1 + static_cast<int64_t>(random() % 400);
    const ContextSplit split = split_by_cost(documents, slices, length, 1, 5);
    CHECK(split.list == 5);
    REQUIRE(split.parts() == slices);
    REQUIRE_NOTHROW(check_split(split, documents.tokens()));
    std::vector<double> cost(static_cast<size_t>(slices));
    int64_t end = 0;
    for (int slice = 0; slice < slices; ++slice) {
      const TokenRange range = split.ranges[static_cast<size_t>(slice)].front();
      CHECK(range.begin == end);
      end = range.end;
      for (int64_t d = 0; d < documents.documents(); ++d) {
        for (int64_t i = std::max(range.begin, documents.first(d));
             i < std::min(range.end, documents.first(d + 1)); ++i)
          cost[static_cast<size_t>(slice)] +=
              1 + (2.0 * static_cast<double>(i - documents.first(d)) + 1) / static_cast<double>(length);
      }
    }
    double all = 0, dearest = 0;  // of a token
    for (const double one : cost) all += one;
    dearest = 1 + 2.0 * static_cast<double>(documents.longest) / static_cast<double>(length);
    for (const double one : cost) CHECK(std::abs(one - all / slices) <= 66 * dearest);
  }
  CHECK_THROWS_WITH(split_by_cost(equal_segments(1, 3, at::kCPU), 4, 10, 1, 0),
                    contains_text("4 sequence slices"));
  CHECK_THROWS_WITH(split_by_cost(equal_segments(1, 11, at::kCPU), 4, 10, 3, 0),
                    contains_text("4 sequence slices of 3 or more"));
  const ContextSplit short_ones = split_by_cost(equal_segments(1, 4, at::kCPU), 4, 1, 1, 0);
  CHECK(short_ones.ranges == std::vector<std::vector<TokenRange>>{{{0, 1}}, {{1, 2}}, {{2, 3}}, {{3, 4}}});
  // x + x^2 / 64 = half of 1024 + 1024^2 / 64: x = 715.05, and slices are multiples of 32.
  const ContextSplit halves = split_by_cost(equal_segments(1, 1024, at::kCPU), 2, 64, 1, 0);
  CHECK(halves.ranges == std::vector<std::vector<TokenRange>>{{{0, 704}}, {{704, 1024}}});
  // The last tokens cost most, so that by cost alone the last slice would have one.
  const ContextSplit at_least = split_by_cost(equal_segments(1, 9, at::kCPU), 3, 1, 3, 0);
  CHECK(at_least.ranges == std::vector<std::vector<TokenRange>>{{{0, 3}}, {{3, 6}}, {{6, 9}}});
}
