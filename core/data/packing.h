// Which of the next documents fill the rows of a step. Pure arithmetic on lengths, the same on every rank.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/data/loader_options.h"

namespace pptrain::data {

// The documents of each row, as they were offered: 0 is the first.
using Rows = std::vector<std::vector<int64_t>>;

// The length of the i-th document offered, from 1 to `capacity`; nothing behind the last one.
using OfferedLength = std::function<std::optional<int64_t>(int64_t)>;

// Fills `count` rows of `capacity` tokens with the first documents offered, each whole. Those that it takes
// are the first ones without a gap, so that how many were taken is all that the next step must know. Where
// fewer are offered than there are rows, rows are left empty.
//
// none: a document a row. sequential: a row ends where the next document does not fit. best_fit: as many as
// best-fit decreasing packs (Johnson, "Near-optimal bin packing algorithms", 1973: longest first, each into
// the fullest row that has room). As n documents may not fit where more do, n is found by bisection between
// `count`, which always fit, and what the tokens allow.
Rows pack(Packing how, int64_t count, int64_t capacity, const OfferedLength& offered);

}  // namespace pptrain::data
