// Products of a job's sizes, checked before anybody multiplies.
#pragma once

#include <cstdint>

#include "core/config/document.h"

namespace pptrain::config {

// The ranks of the mesh, but for dp_shard: 0 where they are more than an int counts.
int64_t ranks_beside_dp_shard(const DistributedSection& distributed);

// Reports, at the keys that are multiplied, what would not fit: ranks, tokens of a microbatch and of a step,
// actions of a schedule, parameters, activations of a microbatch. Where it gives true, all of these can be
// computed in 64 bits (in 32 where ranks, positions and actions are counted) without overflow.
// `document.job` has its model's sizes; those that are 0, missing, make no product.
bool check_products(Document& document);

}  // namespace pptrain::config
