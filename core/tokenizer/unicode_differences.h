// Where the Python package `tokenizers` and the Unicode tables of PCRE2 and utf8proc disagree
// (unicode_differences.py measures it). Newer versions of both libraries make some of it needless, never
// wrong.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

namespace pptrain::tokenizer {

struct Range {
  uint32_t first, last;  // code points, both within
};
struct NewerRange {
  uint32_t first, last;
  char kind, subkind;  // of the general category: 'L', 'u'
};
using Pair = std::pair<uint32_t, uint32_t>;  // from, to

// All in ascending order, but for the first, which is so within a category.
std::span<const NewerRange> newer_ranges();      // assigned after Unicode 14
std::span<const Range> word_ranges();            // of a pattern's \w, beside L, M, Nd, Nl and Pc
std::span<const Range> inert_ranges();           // that the normal forms leave as they are
std::span<const Range> no_mark_ranges();         // marks that StripAccents leaves
std::span<const Range> mark_ranges();            // no marks, which it takes
std::span<const Range> number_ranges();          // further numbers of Digits
std::span<const Range> no_punctuation_ranges();  // punctuation that Punctuation leaves
std::span<const Range> punctuation_ranges();     // no punctuation, which it cuts at
std::span<const Range> han_ranges();             // of a pattern's \p{Han}
std::span<const Pair> lower_ranges();            // further lower case

}  // namespace pptrain::tokenizer
