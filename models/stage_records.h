// What a stage saves of its microbatches between passes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "core/nn/norm.h"
#include "core/nn/token_info.h"
#include "core/nn/vocabulary.h"
#include "core/nn/weight_grad_queue.h"
#include "models/block.h"

namespace pptrain::models {

struct StageRecord {
  nn::TokenInfo info;
  at::Tensor tokens;                             // first stage
  std::vector<Block::Saved> blocks;              // from F to B or I
  std::vector<nn::WeightGradQueue> queues = {};  // from I to W, of each block
  // Last stage, from F on: gradient at the last block's output. First stage, from I on: at the embedding's.
  at::Tensor dy;
  nn::Norm::Saved norm = {};  // last stage of a head in parts
};

// By microbatch. Tensors of the microbatch itself (tokens, labels, positions) do not count as bytes, and
// memory that tensors share counts once.
struct StageRecords {
  std::map<int, StageRecord> saved;                        // from F to B or I
  std::map<int, StageRecord> pending;                      // from I to W
  std::map<int, nn::LinearCrossEntropy::Pending> of_head;  // from S to T

  int64_t saved_bytes() const;
  int64_t pending_bytes() const;  // of the two operands of each weight gradient
  int64_t head_bytes() const;
  void clear();
};

}  // namespace pptrain::models
