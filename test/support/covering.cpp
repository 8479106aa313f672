#include "test/support/covering.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <random>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "test/support/catch.h"

namespace pptrain::test {
namespace {

using Value = std::pair<size_t, size_t>;  // option, index of the value
using Pairs = std::set<std::pair<Value, Value>>;

template <typename Visit>
void each_pair(const Combination& row, const Visit& visit) {
  for (size_t b = 1; b < row.size(); ++b) {
    for (size_t a = 0; a < b; ++a) visit(std::pair{Value{a, row[a]}, Value{b, row[b]}});
  }
}

Pairs pairs_of(const std::vector<Combination>& rows) {
  Pairs pairs;
  for (const Combination& row : rows) each_pair(row, [&](const auto& pair) { pairs.insert(pair); });
  return pairs;
}

void remove_pairs(Pairs& pairs, const std::vector<Combination>& rows) {
  for (const Combination& row : rows) each_pair(row, [&](const auto& pair) { pairs.erase(pair); });
}

}  // namespace

std::vector<Combination> all_combinations(std::span<const size_t> values,
                                          const std::function<bool(const Combination&)>& legal) {
  std::vector<Combination> rows;
  Combination row(values.size(), 0);
  for (const size_t count : values) {
    if (count == 0) return rows;
  }
  while (true) {
    if (legal(row)) rows.push_back(row);
    size_t option = values.size();
    while (option > 0 && ++row[option - 1] == values[option - 1]) row[--option] = 0;
    if (option == 0) return rows;
  }
}

std::vector<Combination> covering_combinations(const std::vector<Combination>& legal,
                                               const std::vector<Combination>& given) {
  std::vector<Combination> taken;
  if (all_wanted()) {
    std::ranges::copy_if(legal, std::back_inserter(taken), [&](const Combination& row) {
      return std::ranges::find(given, row) == given.end();
    });
    return taken;
  }
  Pairs missing = pairs_of(legal);
  remove_pairs(missing, given);
  while (!missing.empty()) {
    const Combination* best = nullptr;
    size_t most = 0;
    for (const Combination& row : legal) {
      size_t fresh = 0;
      each_pair(row, [&](const auto& pair) { fresh += missing.contains(pair); });
      if (fresh > most) {
        most = fresh;
        best = &row;
      }
    }
    taken.push_back(*best);
    remove_pairs(missing, {*best});
  }
  return taken;
}

size_t missing_pairs(const std::vector<Combination>& legal, const std::vector<Combination>& taken) {
  Pairs missing = pairs_of(legal);
  remove_pairs(missing, taken);
  return missing.size();
}

namespace {

class RowSearch {
 public:
  RowSearch(std::span<const size_t> values, const Test& admits, uint64_t seed, const Test& counts)
      : values_(values), admits_(admits), counts_(counts), random_(seed) {
    Combination row(values.size(), open_value);
    for (size_t b = 1; b < values.size(); ++b) {
      for (size_t a = 0; a < b; ++a) add_pairs(row, a, b);
    }
  }

  std::vector<Combination> run(const std::vector<Combination>& wanted) {
    std::vector<Combination> rows;
    for (const Combination& row : wanted) take(row, rows);
    while (!missing_.empty()) {
      const auto& [a, b] = *std::next(missing_.begin(), static_cast<ptrdiff_t>(random(missing_.size())));
      Combination row(values_.size(), open_value);
      row[a.first] = a.second;
      row[b.first] = b.second;
      take(row, rows);
    }
    return rows;
  }

 private:
  static constexpr int candidates = 60;  // the row with most new pairs among these is taken

  size_t random(size_t count) { return static_cast<size_t>(random_() % count); }

  // The pairs of two options that some row has.
  void add_pairs(Combination& row, size_t a, size_t b) {
    for (row[a] = 0; row[a] < values_[a]; ++row[a]) {
      for (row[b] = 0; row[b] < values_[b]; ++row[b]) {
        Combination whole = row;
        if (counts_(row) && complete(whole)) missing_.emplace(Value{a, row[a]}, Value{b, row[b]});
      }
    }
    row[a] = row[b] = open_value;
  }

  // Fills open options with the first admitted values. False if there are none.
  bool complete(Combination& row) const {
    if (!admits_(row)) return false;
    const auto next = std::ranges::find(row, open_value);
    if (next == row.end()) return true;
    const auto option = static_cast<size_t>(next - row.begin());
    for (row[option] = 0; row[option] < values_[option]; ++row[option]) {
      if (complete(row)) return true;
    }
    row[option] = open_value;
    return false;
  }

  size_t new_pairs(const Combination& row, size_t option) const {
    size_t count = 0;
    for (size_t other = 0; other < row.size(); ++other) {
      if (other == option || row[other] == open_value) continue;
      const size_t a = std::min(option, other), b = std::max(option, other);
      count += missing_.contains({Value{a, row[a]}, Value{b, row[b]}});
    }
    return count;
  }

  size_t new_pairs(const Combination& row) const {
    size_t count = 0;
    each_pair(row, [&](const auto& pair) { count += missing_.contains(pair); });
    return count;
  }

  // Fills the open options in random order, each with a value that adds most new pairs; among equals often
  // the first.
  Combination filled(Combination row) {
    std::vector<size_t> order;
    for (size_t option = 0; option < row.size(); ++option) {
      if (row[option] == open_value) order.push_back(option);
    }
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random(i)]);
    for (const size_t option : order) {
      std::vector<size_t> best;
      size_t most = 0;
      for (size_t value = 0; value < values_[option]; ++value) {
        row[option] = value;
        const size_t count = new_pairs(row, option);
        if (count < most && !best.empty()) continue;
        Combination whole = row;
        if (!complete(whole)) continue;
        if (count > most) best.clear();
        most = count;
        best.push_back(value);
      }
      row[option] = random(2) == 0 ? best.at(0) : best.at(random(best.size()));
    }
    return row;
  }

  void take(const Combination& part, std::vector<Combination>& rows) {
    Combination whole = part;
    if (!complete(whole)) throw Error("a wanted combination is not admitted");
    Combination best = filled(part);
    for (int i = 1; i < candidates; ++i) {
      Combination row = filled(part);
      if (new_pairs(row) > new_pairs(best)) best = std::move(row);
    }
    remove_pairs(missing_, {best});
    rows.push_back(std::move(best));
  }

  std::span<const size_t> values_;
  const Test& admits_;
  const Test& counts_;
  std::mt19937_64 random_;
  Pairs missing_;
};

}  // namespace

std::vector<Combination> covering_rows(std::span<const size_t> values, const Test& admits, uint64_t seed,
                                       const std::vector<Combination>& wanted, const Test& counts) {
  return RowSearch(values, admits, seed, counts).run(wanted);
}

std::vector<Combination> take_pairs(std::span<const size_t> values,
                                    const std::function<bool(const Combination&)>& legal) {
  const std::vector<Combination> possible = all_combinations(values, legal);
  std::vector<Combination> taken = covering_combinations(possible);
  REQUIRE(!taken.empty());
  CHECK(missing_pairs(possible, taken) == 0);
  return taken;
}

bool all_wanted() {
  return std::getenv("PPTRAIN_TESTS_ALL") != nullptr;
}

}  // namespace pptrain::test
