// An embedding that is sharded over all pipeline ranks: each has a shard of its masters, of its summed
// gradient and of its optimizer state, as data ranks have under ZeRO-1 (Rajbhandari et al., arXiv
// 1910.02054). Passes run on the first stage's rank alone, which also has the whole compute weights and the
// whole gradient.
#pragma once

#include "core/nn/parameter.h"
#include "parallel/comm/communicator.h"

namespace pptrain::pipeline {

// The embedding's group on pipeline rank `rank` of `ranks`; rank 0 has the first stage. Other ranks never
// restore what is whole.
nn::ShardPlace embedding_place(int rank, int ranks);

// Sets up the links over which the next two send.
void connect_embedding(comm::Communicator& pipeline);

// Rounds all ranks' shards of the masters into rank 0's whole compute weights: call it after masters change.
// The shard of rank r is the r-th, and whole compute weights have memory on rank 0.
void gather_embedding(comm::Communicator& pipeline, nn::ParameterGroup& embedding);

// Each rank's gradient becomes its shard of rank 0's whole gradient, which is complete.
void scatter_embedding_gradient(comm::Communicator& pipeline, nn::ParameterGroup& embedding);

// All three are collective over `pipeline`.

}  // namespace pptrain::pipeline
