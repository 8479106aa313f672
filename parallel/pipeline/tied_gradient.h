// Tied embeddings under a pipeline: the first stage's embedding and the head, which may be in parts, are two
// copies of one weight.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <utility>

#include "parallel/comm/communicator.h"

namespace pptrain::pipeline {

// Each use of the weight has a gradient of its own on every layout, even if both live on one rank; here each
// becomes embedding + head (float32), the same bits everywhere. Collective over `pipeline`, and over
// `pieces`, the ranks that parameter groups are sharded over. Gradients are this rank's shards
// (nn::shard_elements), float32 [elements]: of the embedding on first_rank, of a part of the head if `parts`
// says so, and undefined otherwise. The weight is the first of its group.
// parts: [pipeline rank] the first element of the whole embedding in the rank's part of the head, and the
// number of its elements; 0 if it has no part.
void sum_tied_gradients(comm::Communicator& pipeline, comm::Communicator& pieces, int first_rank,
                        const at::Tensor& embedding, const at::Tensor& head,
                        std::span<const std::pair<int64_t, int64_t>> parts);

// Sets up the links over which sum_tied_gradients() sends. Collective over `pipeline`.
void connect_tied(comm::Communicator& pipeline, int first_rank,
                  std::span<const std::pair<int64_t, int64_t>> parts);

}  // namespace pptrain::pipeline
