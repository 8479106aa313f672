// The part of a microbatch that a context-parallel rank holds.
#pragma once

#include <memory>

#include "core/data/microbatch.h"
#include "core/tokens/context_split.h"

namespace pptrain::data {

// What rank split->part has of `whole`, a microbatch without a split whose documents may have any lengths:
// tokens, labels and filling (where they are defined) and positions of its ranges, on their device;
// documents, targets and global counts stay those of the whole list. Throws Error for a split that is not one
// of this list.
Microbatch part_of(const Microbatch& whole, std::shared_ptr<const tokens::ContextSplit> split);

// How ranks share out a list of any length, as if it were a row (tokens::split_rows) but for pieces that
// differ by one token. Throws Error where there are fewer tokens than pieces.
tokens::ContextSplit split_list(tokens::ContextOrder order, int64_t tokens, int parts, int part);

}  // namespace pptrain::data
