// Balancing documents over microbatches keeps the same documents and never makes the schedule end later.
#include "core/data/balance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "core/data/data_loader.h"
#include "test/support/catch.h"

using namespace pptrain::data;

namespace {

// Two machines in a row (a flow shop); the second is slower. Times have a fixed part, tokens and squares.
int64_t flow_shop(std::span<const int64_t> tokens, std::span<const int64_t> squares) {
  int64_t first = 0, second = 0;
  for (size_t j = 0; j < tokens.size(); ++j) {
    const int64_t cost = 20 + 10 * tokens[j] + squares[j];
    first += cost;
    second = std::max(first, second) + 2 * cost;
  }
  return second;
}

struct Problem {
  std::vector<int64_t> lengths;
  LoaderOptions options;
};

Problem problem_of(std::vector<int64_t> lengths, int64_t capacity) {
  LoaderOptions options{.seq_len = capacity, .micro_batch_size = 1};
  options.attention_length = 10;
  options.step_end = flow_shop;
  return {std::move(lengths), options};
}

// Gives documents in turn to the lists that have room.
Lists in_turn(const Problem& problem, size_t ranks, size_t microbatches) {
  Lists lists(ranks, std::vector<std::vector<int64_t>>(microbatches));
  std::vector<int64_t> room(ranks * microbatches, problem.options.seq_len);
  size_t next = 0;
  for (size_t document = 0; document < problem.lengths.size(); ++document) {
    while (room[next % room.size()] < problem.lengths[document]) ++next;
    const size_t list = next++ % room.size();
    room[list] -= problem.lengths[document];
    lists[list % ranks][list / ranks].push_back(static_cast<int64_t>(document));
  }
  return lists;
}

std::vector<int64_t> long_tail(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::lognormal_distribution<double> length(2.0, 1.0);
  std::vector<int64_t> lengths(count);
  for (int64_t& each : lengths) each = std::clamp<int64_t>(static_cast<int64_t>(length(random)), 1, 64);
  return lengths;
}

// The earliest end over all ways to put documents into non-empty lists.
int64_t least_end(const Problem& problem, size_t ranks, size_t microbatches) {
  const size_t lists = ranks * microbatches, documents = problem.lengths.size();
  int64_t least = std::numeric_limits<int64_t>::max();
  for (size_t code = 0; code < static_cast<size_t>(std::pow(lists, documents)); ++code) {
    Lists tried(ranks, std::vector<std::vector<int64_t>>(microbatches));
    for (size_t document = 0, rest = code; document < documents; ++document, rest /= lists)
      tried[rest % lists % ranks][rest % lists / ranks].push_back(static_cast<int64_t>(document));
    bool possible = true;
    for (const auto& rank : tried) {
      for (const auto& list : rank) {
        int64_t tokens = 0;
        for (const int64_t document : list) tokens += problem.lengths[static_cast<size_t>(document)];
        possible = possible && !list.empty() && tokens <= problem.options.seq_len;
      }
    }
    if (possible) least = std::min(least, last_end(problem.lengths, problem.options, tried));
  }
  return least;
}

}  // namespace

TEST_CASE("balanced lists hold each document once, fit, and end no later") {
  int64_t before = 0, after = 0;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const size_t ranks = 1 + seed % 3, microbatches = 1 + seed % 7;
    const size_t documents = ranks * microbatches * (1 + seed % 6);
    // From lists with hardly any room to ones with much.
    Problem problem = problem_of(long_tail(documents, seed), 64 * (1 + seed % 6));
    problem.options.in_step = seed % 2 == 1;
    const Lists given = in_turn(problem, ranks, microbatches),
                lists = balanced(problem.lengths, problem.options, given);
    CAPTURE(seed);
    CHECK(lists == balanced(problem.lengths, problem.options, given));
    std::vector<int64_t> all;
    REQUIRE(lists.size() == ranks);
    for (const auto& rank : lists) {
      REQUIRE(rank.size() == microbatches);
      for (const auto& list : rank) {
        int64_t tokens = 0;
        for (const int64_t document : list) tokens += problem.lengths[static_cast<size_t>(document)];
        CHECK_FALSE(list.empty());
        CHECK(tokens <= problem.options.seq_len);
        CHECK(std::ranges::is_sorted(list));
        all.insert(all.end(), list.begin(), list.end());
      }
    }
    std::ranges::sort(all);
    std::vector<int64_t> expected(documents);
    std::iota(expected.begin(), expected.end(), 0);
    CHECK(all == expected);
    CHECK(last_end(problem.lengths, problem.options, lists) <=
          last_end(problem.lengths, problem.options, given));
    before += last_end(problem.lengths, problem.options, given);
    after += last_end(problem.lengths, problem.options, lists);
  }
  CHECK(after < before * 8 / 10);
}

TEST_CASE("of few documents, the balanced step ends within a hundredth of the earliest end") {
  for (uint32_t seed = 0; seed < 12; ++seed) {
    const size_t ranks = 1 + seed % 2, microbatches = ranks == 1 ? 3 : 2;
    Problem problem = problem_of(long_tail(6, 100 + seed), 96);
    problem.options.in_step = seed % 4 == 1;
    CAPTURE(seed);
    const int64_t end =
        last_end(problem.lengths, problem.options,
                 balanced(problem.lengths, problem.options, in_turn(problem, ranks, microbatches)));
    const int64_t least = least_end(problem, ranks, microbatches);
    CHECK(end >= least);
    CHECK(end * 100 <= least * 101);
  }
}

TEST_CASE("the end is that of the slowest data rank, or of passes that wait for the largest") {
  Problem problem = problem_of({1, 2, 3, 4}, 10);
  const Lists lists = {{{0}, {3}}, {{2}, {1}}};
  const auto end = [](std::vector<int64_t> lengths) {
    std::vector<int64_t> squares = lengths;
    for (int64_t& each : squares) each *= each;
    return flow_shop(lengths, squares);
  };
  CHECK(last_end(problem.lengths, problem.options, lists) == std::max(end({1, 4}), end({3, 2})));
  problem.options.in_step = true;
  CHECK(last_end(problem.lengths, problem.options, lists) == end({3, 4}));
}
