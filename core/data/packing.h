// Which of the next documents fill the rows of a step. Pure arithmetic on lengths, the same on every rank.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "core/config/word.h"

namespace pptrain::data {

using config::Packing;

// The documents of each row, as they were offered: 0 is the first.
using Rows = std::vector<std::vector<int64_t>>;

// The length of the i-th document offered, from 1 to `capacity`; nothing behind the last one.
using OfferedLength = std::function<std::optional<int64_t>(int64_t)>;

// Fills `count` rows of `capacity` tokens with the first documents offered, each whole. It takes the first
// ones without a gap, so that the next step needs only their number. If fewer are offered than there are
// rows, rows are left empty.
//
// `none`: a document a row. `sequential`: a row ends when the next document does not fit. `best_fit`: as many
// as best-fit decreasing packs (Johnson, "Near-optimal bin packing algorithms", 1973: longest first, each
// into the fullest row that has room). Although n documents may not fit, more may: n is found by bisection
// between `count`, which always fit, and what the tokens allow.
Rows pack(Packing how, int64_t count, int64_t capacity, const OfferedLength& offered);

// --- Documents over rows, and rows over microbatches, such that all cost alike. Only integers, so that every
// rank gets the same result.

// What a document costs: its tokens, and its causal attention, which costs as much at `attention_length`. 0:
// tokens alone count.
inline int64_t document_cost(int64_t length, int64_t attention_length) {
  return attention_length == 0 ? length : length * (attention_length + length);
}

// Deals the documents of `rows` to the same number of rows, none empty, none above `capacity` tokens: longest
// processing time first (Graham, "Bounds on multiprocessing timing anomalies", 1969). If that runs out of
// room, keeps the rows as they were. Then the costliest row gives documents to the cheapest, or exchanges
// with it, as long as that helps. lengths: [document].
Rows level_rows(Rows rows, const std::vector<int64_t>& lengths, int64_t capacity, int64_t attention_length);

// The numbers of the values, the largest first, equal ones in order.
std::vector<int64_t> largest_first(std::span<const int64_t> values);

// Divides items of these costs into `groups` groups of equal size, which divides their number: the costliest
// item that is left goes to the cheapest group with a place. The items of a group ascend.
std::vector<std::vector<int64_t>> share_equally(const std::vector<int64_t>& costs, int64_t groups);

}  // namespace pptrain::data
