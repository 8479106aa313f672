// Documents over rows, and rows over microbatches, such that all cost alike. Integers alone, so that every
// rank comes to the same.
#pragma once

#include <cstdint>
#include <vector>

#include "core/data/packing.h"

namespace pptrain::data {

// What a document costs: its tokens, and its causal attention, which costs as much at `attention_length`. 0:
// tokens alone count.
struct DocumentCost {
  int64_t attention_length = 0;
  int64_t operator()(int64_t length) const {
    return attention_length == 0 ? length : length * (attention_length + length);
  }
};

// The documents of `rows` on as many rows of at most `capacity` tokens each, none of them emptied: longest
// processing time first (Graham, "Bounds on multiprocessing timing anomalies", 1969), or where that runs out
// of room the rows as they were; then the dearest row gives to the cheapest, or exchanges with it, as long as
// that helps. lengths: [document].
Rows level_rows(Rows rows, const std::vector<int64_t>& lengths, int64_t capacity, const DocumentCost& cost);

// Items of these costs in `groups` groups of as many, which divides their number: the dearest item that is
// left goes to the cheapest group with a place. The items of a group ascend.
std::vector<std::vector<int64_t>> share_equally(const std::vector<int64_t>& costs, int64_t groups);

}  // namespace pptrain::data
