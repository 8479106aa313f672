#include "test/support/covering.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <set>
#include <utility>

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
