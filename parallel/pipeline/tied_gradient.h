// Tied embeddings under a pipeline: the first stage's embedding and the head, which may be in parts, are two
// copies of one weight.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "core/nn/slice.h"
#include "parallel/comm/communicator.h"

namespace pptrain::pipeline {

// Each use of the weight has a gradient of its own on every layout, even if both live on one rank; here each
// becomes embedding + head (float32), the same bits everywhere. Collective over `pipeline`, and over
// `shards`, the ranks that parameter groups are sharded over. Gradients are this rank's shards
// (nn::shard_elements), float32 [elements]: of the embedding on first_rank, of a part of the head if `parts`
// says so, and undefined otherwise. The weight is the first of its group.
// parts: [pipeline rank] the elements of the whole embedding in the rank's part of the head, if it has one.
void sum_tied_gradients(comm::Communicator& pipeline, comm::Communicator& shards, int first_rank,
                        at::Tensor embedding, const at::Tensor& head, std::span<const nn::ElementRun> parts);

// Sets up the links over which sum_tied_gradients() sends. Collective over `pipeline`.
void connect_tied(comm::Communicator& pipeline, int first_rank, std::span<const nn::ElementRun> parts);

}  // namespace pptrain::pipeline
