// What layers need to know of a microbatch's tokens beside their activations. The same for every layer of a
// stage.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/kernels/kernels.h"
#include "core/tokens/context_split.h"
#include "core/tokens/segments.h"

namespace pptrain::nn {

// What turns queries and keys of a list's tokens (rope.h).
struct Rotation {
  kernels::RopeTable table;
  at::Tensor rows = {};  // int32 [tokens]: each token's row of the table; undefined: it is the position
};

struct TokenInfo {
  at::Tensor positions;         // int32 [tokens]: each token's place in its document
  tokens::Segments segments;    // where the documents lie, in the whole list
  std::vector<Rotation> ropes;  // AttentionConfig::rope says which of them a layer takes
  std::shared_ptr<const tokens::ContextSplit> context = {};  // null: the whole list is this rank's
  // bool [rows]: those of the rank's own rows (nn/region.h) that are of no document, and count in no router's
  // losses and loads; undefined: none is.
  at::Tensor filling = {};
  // Of the microbatches of this number of all data ranks: tokens of documents, and labels that count.
  int64_t global_tokens = 0;
  int64_t global_targets = 0;
  // Layers compute this forward pass again before its backward pass, and keep nothing of it till then.
  bool computed_again = false;

  // norm_rope's rows of this rotation.
  const at::Tensor& rows_of(const Rotation& rope) const {
    return rope.rows.defined() ? rope.rows : positions;
  }
};

}  // namespace pptrain::nn
