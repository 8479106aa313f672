// Tied embeddings under a pipeline: the first stage's embedding and the last stage's head are two copies of
// one weight.
#pragma once

#include <ATen/core/Tensor.h>

#include "parallel/comm/communicator.h"

namespace pptrain::pipeline {

// Each use of the weight has a gradient of its own on every layout, also when both live on one rank; here
// each becomes embedding + head (float32), the same bits everywhere. Collective over the ranks that hold
// either: first_rank holds the embedding, last_rank the head. Undefined tensors on ranks that hold none.
void sum_tied_gradient(comm::Communicator& pipeline, int first_rank, int last_rank, at::Tensor embedding_grad,
                       at::Tensor head_grad);

}  // namespace pptrain::pipeline
