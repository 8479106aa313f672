// Token lists for tests of context parallelism: documents of any lengths, divided in any way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "core/data/tokens/context_split.h"
#include "core/data/tokens/segments.h"

namespace pptrain::test {

// `tokens` tokens in documents; some documents have one token.
inline tokens::Segments random_documents(std::mt19937& random, int64_t tokens) {
  std::vector<int32_t> starts{0};
  while (starts.back() < tokens) {
    const int64_t most = random() % 4 == 0 ? 1 : std::max<int64_t>(1, tokens / 2);
    const int64_t length = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most));
    starts.push_back(static_cast<int32_t>(std::min<int64_t>(tokens, starts.back() + length)));
  }
  return tokens::make_segments(starts, at::kCPU);
}

// Ranges of a few tokens, each given to a random rank. Ranks may have unequal numbers of tokens, or none.
inline tokens::ContextSplit random_split(std::mt19937& random, int64_t tokens, int ranks) {
  tokens::ContextSplit split{
      .part = 0, .ranges = std::vector<std::vector<tokens::TokenRange>>(static_cast<size_t>(ranks))};
  for (int64_t begin = 0; begin < tokens;) {
    const int64_t end = std::min<int64_t>(tokens, begin + 1 + static_cast<int64_t>(random() % 12));
    split.ranges[random() % static_cast<uint64_t>(ranks)].push_back({begin, end});
    begin = end;
  }
  return split;
}

}  // namespace pptrain::test
