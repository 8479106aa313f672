// What layers need to know of a microbatch's tokens in addition to their activations. The same for every
// layer of a stage.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/data/tokens/context_split.h"
#include "core/data/tokens/segments.h"
#include "core/kernels/kernels.h"

namespace pptrain::nn {

// Rotates queries and keys of a list's tokens (rope.h).
struct Rotation {
  kernels::RopeTable table;
  at::Tensor rows = {};  // int32 [tokens]: each token's row of the table; undefined: it is the position
};

struct TokenInfo {
  at::Tensor positions;         // int32 [tokens]: each token's place in its document
  tokens::Segments segments;    // where the documents lie, in the whole list
  std::vector<Rotation> ropes;  // AttentionConfig::rope says which of them a layer takes
  std::shared_ptr<const tokens::ContextSplit> context = {};  // null: the whole list is this rank's
  // bool [rows]: true for the rank's own rows (nn/tensor_group.h) that belong to no document and count in no
  // router's losses and loads; undefined: none.
  at::Tensor filling = {};
  // Over the microbatches with this number on all data ranks: tokens of documents, and valid tokens.
  int64_t global_tokens = 0;
  int64_t global_targets = 0;
  // Layers recompute this forward pass before its backward pass, and save nothing of it till then.
  bool computed_again = false;

  // norm_rope's rows of this rotation.
  const at::Tensor& rows_of(const Rotation& rope) const {
    return rope.rows.defined() ? rope.rows : positions;
  }
};

}  // namespace pptrain::nn
