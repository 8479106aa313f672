// Covering arrays: of all combinations of several options few, in which still every two values of any two
// options meet.
#pragma once

#include <cstddef>
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

// PPTRAIN_TESTS_ALL is set: tests take full ranges.
bool all_wanted();

}  // namespace pptrain::test
