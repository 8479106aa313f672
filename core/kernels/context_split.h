// Which tokens of a microbatch each context-parallel rank holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pptrain::kernels {

// Tokens [begin, end) of a microbatch's whole list.
struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t length() const { return end - begin; }
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

// A rank's own list is its ranges, one after the other. Every token of the whole list is in one range.
struct ContextSplit {
  int part = 0;                                 // this rank
  std::vector<std::vector<TokenRange>> ranges;  // [rank], ascending

  int parts() const { return static_cast<int>(ranges.size()); }
  const std::vector<TokenRange>& own() const { return ranges[static_cast<size_t>(part)]; }
  int64_t tokens(int rank) const {
    int64_t sum = 0;
    for (const TokenRange& range : ranges[static_cast<size_t>(rank)]) sum += range.length();
    return sum;
  }
};

}  // namespace pptrain::kernels
