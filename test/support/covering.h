// Covering arrays: of all combinations of several options few, in which still every two values of any two
// options meet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace pptrain::test {

using Combination = std::vector<size_t>;  // per option the index of its value

// The combinations that `legal` admits of options with so many values each, in lexicographic order.
std::vector<Combination> all_combinations(std::span<const size_t> values,
                                          const std::function<bool(const Combination&)>& legal);

// Those of `legal` that are to be taken beside `given`, which are taken in any case, so that each pair of
// values of two options which occurs in any of `legal` occurs in one that is taken: always the first of those
// with most pairs not yet seen, so that the choice is the same on every machine. With PPTRAIN_TESTS_ALL in
// the environment (scripts/test.sh --all): all of `legal` that are not given.
std::vector<Combination> covering_combinations(const std::vector<Combination>& legal,
                                               const std::vector<Combination>& given = {});

// How many pairs of values occur in `legal` and in none of `taken`.
size_t missing_pairs(const std::vector<Combination>& legal, const std::vector<Combination>& taken);

// What a test with so many values of each option takes of all legal combinations; checks that no pair is
// missing.
std::vector<Combination> take_pairs(
    std::span<const size_t> values,
    const std::function<bool(const Combination&)>& legal = [](const Combination&) { return true; });

// Of a value that is not chosen yet.
inline constexpr size_t open_value = static_cast<size_t>(-1);

// The same for options whose combinations are too many to be listed. `admits` says whether the values that a
// row has so far, the others being open_value, may stand together: a row that it refuses stays refused
// whatever is chosen beside. The rows are whole; every pair of values that occurs in any row it admits occurs
// in one of them, if the row of these two alone `counts`; and each of `wanted`, rows with open values, is
// part of one. The choice depends on `seed` alone. Throws Error for a wanted row that cannot be.
using Test = std::function<bool(const Combination&)>;
std::vector<Combination> covering_rows(
    std::span<const size_t> values, const Test& admits, uint64_t seed,
    const std::vector<Combination>& wanted = {},
    const Test& counts = [](const Combination&) { return true; });

// PPTRAIN_TESTS_ALL is set: tests take full ranges.
bool all_wanted();

}  // namespace pptrain::test
