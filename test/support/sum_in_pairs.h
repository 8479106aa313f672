// The order in which communicators add, written as its definition.
#pragma once

#include <bit>

namespace pptrain::test {

// The sum of term(first) to term(first + count - 1): the first terms are as many as the largest power of two
// below their number, and each half is such a sum.
template <typename Term>
auto sum_in_pairs(const Term& term, int count, int first = 0) -> decltype(term(0)) {
  if (count == 1) return term(first);
  const int left = static_cast<int>(std::bit_ceil(static_cast<unsigned>(count)) / 2);
  return sum_in_pairs(term, left, first) + sum_in_pairs(term, count - left, first + left);
}

}  // namespace pptrain::test
