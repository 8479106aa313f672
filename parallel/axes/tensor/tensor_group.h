// The tensor-parallel group of ranks as the layers of a stage see it.
#pragma once

#include <cstdint>
#include <memory>

#include "core/nn/tensor_group.h"
#include "parallel/comm/communicator.h"

namespace pptrain::tensor {

// The tensor-parallel group of a communicator; of a rank alone if the group is null or has one rank. Gathers
// and sums are the communicator's, so they have the same bits on every transport. `tp` must outlive it.
std::shared_ptr<const nn::TensorGroup> make_tensor_group(comm::Communicator* tp);

// The ranks of `tp` that hold copies of the same key-value heads (nn::Copies::kv), in rank order: neighbours
// if tp is a multiple of kv_heads and larger; else each rank alone. Collective over `tp`, which must outlive
// the group. Throws Error if neither number divides the other.
std::unique_ptr<comm::Communicator> make_kv_group(comm::Communicator& tp, int64_t kv_heads);

}  // namespace pptrain::tensor
