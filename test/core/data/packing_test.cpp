// Packings against their plainest form, and the invariants of balancing.
#include "core/data/packing.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "core/base/error.h"
#include "core/data/cheapest_lists.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::data;

namespace {

using Lengths64 = std::vector<int64_t>;

OfferedLength offer(const Lengths64& lengths) {
  return [&lengths](int64_t i) {
    return i < std::ssize(lengths) ? std::optional(lengths[static_cast<size_t>(i)]) : std::nullopt;
  };
}

// Many short documents and a few long ones.
Lengths64 long_tail(int64_t count, int64_t longest, uint32_t seed) {
  std::mt19937 random(seed);
  std::lognormal_distribution<double> length(std::log(static_cast<double>(longest)) / 2, 1.0);
  Lengths64 lengths;
  for (int64_t i = 0; i < count; ++i)
    lengths.push_back(std::clamp<int64_t>(static_cast<int64_t>(length(random)), 1, longest));
  return lengths;
}

// Best-fit decreasing over the first n documents, by plain search. Nothing if they do not fit.
std::optional<Rows> decreasing(const Lengths64& lengths, size_t n, int64_t count, int64_t capacity) {
  std::vector<bool> placed(n, false);
  Rows rows(static_cast<size_t>(count));
  Lengths64 room(static_cast<size_t>(count), capacity);
  for (size_t step = 0; step < n; ++step) {
    size_t longest = n;
    for (size_t i = 0; i < n; ++i) {
      if (!placed[i] && (longest == n || lengths[i] > lengths[longest])) longest = i;
    }
    placed[longest] = true;
    size_t best = room.size();
    for (size_t r = 0; r < room.size(); ++r) {
      if (room[r] >= lengths[longest] && (best == room.size() || room[r] < room[best])) best = r;
    }
    if (best == room.size()) return std::nullopt;
    room[best] -= lengths[longest];
    rows[best].push_back(static_cast<int64_t>(longest));
  }
  for (auto& row : rows) std::ranges::sort(row);
  return rows;
}

Rows reference_best_fit(const Lengths64& lengths, int64_t count, int64_t capacity) {
  size_t most = 0;
  for (int64_t tokens = 0; most < lengths.size() && tokens + lengths[most] <= count * capacity; ++most)
    tokens += lengths[most];
  if (auto all = decreasing(lengths, most, count, capacity)) return *all;
  size_t fits = std::min(most, static_cast<size_t>(count)), fails = most;
  while (fails - fits > 1) {
    const size_t middle = (fits + fails) / 2;
    (decreasing(lengths, middle, count, capacity) ? fits : fails) = middle;
  }
  return *decreasing(lengths, fits, count, capacity);
}

Rows reference_sequential(const Lengths64& lengths, int64_t count, int64_t capacity) {
  Rows rows;
  int64_t used = capacity + 1;
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (used + lengths[i] > capacity) {
      if (std::ssize(rows) == count) break;
      rows.emplace_back();
      used = 0;
    }
    rows.back().push_back(static_cast<int64_t>(i));
    used += lengths[i];
  }
  rows.resize(static_cast<size_t>(count));
  return rows;
}

Lengths64 flat(const Rows& rows) {
  Lengths64 all;
  for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
  std::ranges::sort(all);
  return all;
}

int64_t sum(const std::vector<int64_t>& row, const std::function<int64_t(int64_t)>& value) {
  return std::accumulate(row.begin(), row.end(), int64_t{0},
                         [&](int64_t total, int64_t i) { return total + value(i); });
}

}  // namespace

TEST_CASE("packings, written out") {
  const Lengths64 lengths = {4, 5, 3, 9, 2, 6, 1, 10, 7};
  CHECK(pack(Packing::none, 3, 10, offer(lengths)) == Rows{{0}, {1}, {2}});
  CHECK(pack(Packing::sequential, 3, 10, offer(lengths)) == Rows{{0, 1}, {2}, {3}});
  // 4 5 3 9 2 6 1 fill three rows; 10 would need a fourth.
  CHECK(pack(Packing::best_fit, 3, 10, offer(lengths)) == Rows{{3, 6}, {0, 5}, {1, 2, 4}});
}

TEST_CASE("packings are those of the plainest way to find them") {
  std::mt19937 random(1);
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const int64_t capacity = std::vector<int64_t>{1, 7, 64, 300}[seed % 4];
    const int64_t count = 1 + static_cast<int64_t>(random() % 12);
    const Lengths64 lengths = long_tail(static_cast<int64_t>(random() % 400), capacity, seed);
    CAPTURE(seed, capacity, count, lengths.size());
    CHECK(pack(Packing::best_fit, count, capacity, offer(lengths)) ==
          reference_best_fit(lengths, count, capacity));
    CHECK(pack(Packing::sequential, count, capacity, offer(lengths)) ==
          reference_sequential(lengths, count, capacity));
  }
}

TEST_CASE("a packing takes the next documents without a gap, and no row holds more than it can") {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    const Lengths64 lengths = long_tail(500, 128, seed);
    int64_t before = 0;
    for (const Packing how : {Packing::none, Packing::sequential, Packing::best_fit}) {
      const Rows rows = pack(how, 16, 128, offer(lengths));
      REQUIRE(rows.size() == 16);
      const Lengths64 taken = flat(rows);
      Lengths64 first(taken.size());
      std::iota(first.begin(), first.end(), 0);
      CHECK(taken == first);
      for (const auto& row : rows) {
        CHECK_FALSE(row.empty());
        CHECK(sum(row, [&](int64_t i) { return lengths[static_cast<size_t>(i)]; }) <= 128);
      }
      CHECK(std::ssize(taken) >= before);  // none <= sequential <= best_fit
      before = std::ssize(taken);
    }
    // Best-fit decreasing leaves little room in a step's rows.
    const Rows rows = pack(Packing::best_fit, 16, 128, offer(lengths));
    int64_t tokens = 0;
    for (const int64_t i : flat(rows)) tokens += lengths[static_cast<size_t>(i)];
    CHECK(tokens >= 16 * 128 * 92 / 100);
  }
}

TEST_CASE("levelled rows hold the same documents, none is emptied, and the dearest costs less") {
  for (const int64_t attention_length : {0, 50, 100000}) {
    for (uint32_t seed = 0; seed < 40; ++seed) {
      const Lengths64 lengths = long_tail(1 + seed * 7, 128, seed);
      const Packing how = seed % 2 == 0 ? Packing::sequential : Packing::best_fit;
      const Rows rows = pack(how, 1 + seed % 9, 128, offer(lengths));
      const Lengths64 taken(lengths.begin(), lengths.begin() + std::ssize(flat(rows)));
      const auto length = [&](int64_t i) { return taken[static_cast<size_t>(i)]; };
      const auto dearest = [&](const Rows& of) {
        int64_t most = 0;
        for (const auto& row : of)
          most =
              std::max(most, sum(row, [&](int64_t i) { return document_cost(length(i), attention_length); }));
        return most;
      };
      const Rows levelled = level_rows(rows, taken, 128, attention_length);
      CAPTURE(attention_length, seed);
      REQUIRE(levelled.size() == rows.size());
      CHECK(flat(levelled) == flat(rows));
      CHECK(dearest(levelled) <= dearest(rows));
      for (size_t r = 0; r < levelled.size(); ++r) {
        if (taken.size() >= rows.size()) CHECK_FALSE(levelled[r].empty());
        CHECK(sum(levelled[r], length) <= 128);
        CHECK(std::ranges::is_sorted(levelled[r]));
      }
    }
  }
}

TEST_CASE("no move or exchange between the dearest and the cheapest levelled row helps further") {
  constexpr int64_t capacity = 128, attention_length = 50;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const Lengths64 lengths = long_tail(100, capacity, seed);
    const Rows rows = pack(Packing::best_fit, 3, capacity, offer(lengths));
    const Lengths64 taken(lengths.begin(), lengths.begin() + std::ssize(flat(rows)));
    const auto length = [&](int64_t i) { return taken[static_cast<size_t>(i)]; };
    const auto cost = [&](int64_t i) { return document_cost(length(i), attention_length); };
    Rows levelled = level_rows(rows, taken, capacity, attention_length);
    const auto by_cost = [&](const auto& a, const auto& b) { return sum(a, cost) < sum(b, cost); };
    const auto [cheapest, dearest] = std::ranges::minmax_element(levelled, by_cost);
    const int64_t low = sum(*cheapest, cost), high = sum(*dearest, cost), used = sum(*cheapest, length);
    CAPTURE(seed, low, high);
    for (const int64_t given : *dearest) {
      const auto helps = [&](int64_t moved, int64_t tokens) {
        return moved > 0 && tokens <= capacity && std::max(high - moved, low + moved) < high;
      };
      if (dearest->size() > 1) CHECK_FALSE(helps(cost(given), used + length(given)));
      for (const int64_t back : *cheapest)
        CHECK_FALSE(helps(cost(given) - cost(back), used + length(given) - length(back)));
    }
  }
}

TEST_CASE("rows that are level cost nearly alike") {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const Lengths64 lengths = long_tail(600, 512, seed);
    const Rows rows = pack(Packing::sequential, 8, 512, offer(lengths));
    const Lengths64 taken(lengths.begin(), lengths.begin() + std::ssize(flat(rows)));
    constexpr int64_t attention_length = 100;
    const auto cost = [](int64_t length) { return document_cost(length, attention_length); };
    Lengths64 costs;
    for (const auto& row : level_rows(rows, taken, 512, attention_length))
      costs.push_back(sum(row, [&](int64_t i) { return cost(taken[static_cast<size_t>(i)]); }));
    const int64_t mean = std::accumulate(costs.begin(), costs.end(), int64_t{0}) / 8;
    const int64_t longest = cost(*std::ranges::max_element(taken));
    CAPTURE(seed, costs);
    // One document cannot be divided.
    CHECK(std::ranges::max(costs) <= std::max(mean + mean / 10, longest));
  }
}

TEST_CASE("the cheapest list with room is the one that a look at all lists finds") {
  std::mt19937 random(4);
  for (int round = 0; round < 50; ++round) {
    const size_t count = 1 + random() % 20;
    CheapestLists lists;
    std::vector<CheapestLists::List> all;
    for (size_t i = 0; i < count; ++i) all.push_back({.number = i, .room = 100});
    for (const CheapestLists::List& list : all) lists.add(list);
    Lengths64 lengths;
    for (size_t i = 0; i < 10 * count; ++i) lengths.push_back(1 + static_cast<int64_t>(random() % 60));
    std::ranges::sort(lengths, std::greater());
    for (const int64_t length : lengths) {
      CheapestLists::List* expected = nullptr;
      for (CheapestLists::List& list : all) {
        if (list.room >= length && (expected == nullptr || list < *expected)) expected = &list;
      }
      const CheapestLists::List* const first = lists.first(length);
      REQUIRE((first == nullptr) == (expected == nullptr));
      if (first == nullptr) continue;
      REQUIRE(*first == *expected);
      const auto cost = static_cast<int64_t>(random() % 3);
      lists.fill_first(cost, length);
      expected->cost += cost;
      expected->room -= length;
    }
  }
}

TEST_CASE("items are shared out in groups of as many that cost alike") {
  CHECK(share_equally({9, 1, 8, 2, 7, 3}, 3) == std::vector<std::vector<int64_t>>{{0, 1}, {2, 3}, {4, 5}});
  CHECK(share_equally({5, 5}, 2) == std::vector<std::vector<int64_t>>{{0}, {1}});
  CHECK(share_equally({0, 0, 0}, 1) == std::vector<std::vector<int64_t>>{{0, 1, 2}});
  CHECK_THROWS_AS(share_equally({1, 2, 3}, 2), Error);
}
