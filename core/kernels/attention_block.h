// The part of an attention product that some queries and some keys have with each other, for ranks that hold
// the keys of a document a part at a time.
#pragma once

#include <cstdint>

namespace pptrain::kernels {

// Queries [query, query + rows) of one token list and keys [key, key + keys) of another one, or of the same.
// In a list of blocks, those of one document lie one after the other, and blocks of different documents have
// neither queries nor keys in common.
struct AttentionBlock {
  int64_t document = 0;
  int64_t query = 0, rows = 0;
  int64_t key = 0, keys = 0;
  // The queries and keys are the same tokens: rows == keys, and row i sees the first i + 1 keys. Otherwise
  // every row sees every key.
  bool causal = false;

  // Pairs of a query and a key that it sees, the diagonal counted by half: what a causal row sees on average.
  double pairs() const { return static_cast<double>(rows) * static_cast<double>(keys) / (causal ? 2 : 1); }
  bool operator==(const AttentionBlock&) const = default;
};

}  // namespace pptrain::kernels
