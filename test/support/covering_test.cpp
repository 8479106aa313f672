#include "test/support/covering.h"

#include <algorithm>
#include <array>

#include "test/support/catch.h"
#include "test/support/not_run.h"

using namespace pptrain::test;

TEST_CASE("all combinations are those that are legal, in order") {
  const auto rows = all_combinations(std::array<size_t, 2>{2, 3},
                                     [](const Combination& row) { return row[0] + row[1] != 2; });
  CHECK(rows == std::vector<Combination>{{0, 0}, {0, 1}, {1, 0}, {1, 2}});
  CHECK(all_combinations(std::array<size_t, 2>{2, 0}, [](const Combination&) { return true; }).empty());
}

TEST_CASE("few combinations have all pairs, and none of them can go") {
  if (all_wanted()) return not_run("PPTRAIN_TESTS_ALL takes all combinations");
  const auto legal = all_combinations(std::array<size_t, 4>{5, 4, 3, 2}, [](const Combination& row) {
    return row[0] != row[1];  // some pairs do not exist
  });
  const auto taken = covering_combinations(legal);
  CHECK(taken.size() < 30);
  CHECK(missing_pairs(legal, taken) == 0);
  for (const Combination& row : taken) CHECK(std::ranges::find(legal, row) != legal.end());
  for (size_t i = 0; i < taken.size(); ++i) {
    std::vector<Combination> rest = taken;
    rest.erase(rest.begin() + static_cast<ptrdiff_t>(i));
    CHECK(missing_pairs(legal, rest) > 0);
  }
  CHECK(covering_combinations(legal) == taken);
}

TEST_CASE("pairs of given combinations are not taken again") {
  if (all_wanted()) return not_run("PPTRAIN_TESTS_ALL takes all combinations");
  const auto legal =
      all_combinations(std::array<size_t, 3>{3, 3, 3}, [](const Combination&) { return true; });
  const std::vector<Combination> given(legal.begin(), legal.begin() + 9);  // all pairs of the last two
  std::vector<Combination> taken = covering_combinations(legal, given);
  CHECK(taken.size() == 6);  // the first option's other two values with each value of the others
  taken.insert(taken.end(), given.begin(), given.end());
  CHECK(missing_pairs(legal, taken) == 0);
}

TEST_CASE("rows that are not listed have all pairs that are admitted, and what is wanted") {
  const std::array<size_t, 5> values = {5, 4, 3, 2, 2};
  // Some pairs exist only with one value of a third option, some not at all.
  const auto admits = [](const Combination& row) {
    if (row[0] == 4 && row[1] == 3) return false;
    if (row[0] == 1 && row[1] == 1 && row[2] != open_value) return row[2] == 2;
    return true;
  };
  const auto legal = all_combinations(values, admits);
  const Combination wanted = {2, open_value, open_value, 1, 1};
  const auto rows = covering_rows(values, admits, 1, {wanted});
  CHECK(missing_pairs(legal, rows) == 0);
  for (const Combination& row : rows) CHECK(std::ranges::find(legal, row) != legal.end());
  CHECK(std::ranges::any_of(
      rows, [](const Combination& row) { return row[0] == 2 && row[3] == 1 && row[4] == 1; }));
  CHECK(rows.size() <= 30);
  CHECK(covering_rows(values, admits, 1, {wanted}) == rows);
  CHECK(covering_rows(values, admits, 2, {wanted}) != rows);
  // Fewer rows if some pairs do not count.
  const auto counts = [](const Combination& row) { return row[0] == open_value || row[0] < 2; };
  CHECK(covering_rows(values, admits, 1, {}, counts).size() < rows.size());
  CHECK_THROWS(covering_rows(values, admits, 1, {{4, 3, open_value, open_value, open_value}}));
}
