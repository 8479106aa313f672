// Covering arrays: a few of all combinations of several options, in which still every two values of any two
// options meet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace pptrain::test {

using Combination = std::vector<size_t>;  // per option the index of its value

// The combinations that `legal` admits, in lexicographic order; option i has values[i] values.
std::vector<Combination> all_combinations(std::span<const size_t> values,
                                          const std::function<bool(const Combination&)>& legal);

// The combinations of `legal` to take in addition to `given` (which are always taken), so that each pair of
// values of two options in any of `legal` occurs in a taken one. Takes the first of those with most new
// pairs, so that the choice is the same on every machine. With PPTRAIN_TESTS_ALL in the environment
// (scripts/test.sh
// --all): all of `legal` that are not given.
std::vector<Combination> covering_combinations(const std::vector<Combination>& legal,
                                               const std::vector<Combination>& given = {});

// The number of pairs of values that occur in `legal` and in none of `taken`.
size_t missing_pairs(const std::vector<Combination>& legal, const std::vector<Combination>& taken);

// The combinations that a test takes of all legal ones; option i has values[i] values. Checks that no pair is
// missing.
std::vector<Combination> take_pairs(
    std::span<const size_t> values,
    const std::function<bool(const Combination&)>& legal = [](const Combination&) { return true; });

// Stands for a value that is not chosen yet.
inline constexpr size_t open_value = static_cast<size_t>(-1);

// The same for options with too many combinations to list. `admits` tells whether the chosen values of a row
// (the others are open_value) may occur together; a row that it refuses must stay refused with more values.
// The returned rows have no open values. Every pair of values in any admitted row occurs in one of them, if
// the row of these two alone `counts`. Each of `wanted` (rows with open values) is part of one. The choice
// depends only on `seed`. Throws Error for a wanted row that is impossible.
using Test = std::function<bool(const Combination&)>;
std::vector<Combination> covering_rows(
    std::span<const size_t> values, const Test& admits, uint64_t seed,
    const std::vector<Combination>& wanted = {},
    const Test& counts = [](const Combination&) { return true; });

// PPTRAIN_TESTS_ALL is set: tests take full ranges.
bool all_wanted();

}  // namespace pptrain::test
