#include "models/seams.h"

#include <spdlog/fmt/fmt.h>

#include "core/base/error.h"
#include "parallel/context/context_attention.h"
#include "parallel/expert/rank_exchange.h"
#include "parallel/tensor/tensor_region.h"

namespace pptrain::models {
namespace {

bool shared(const comm::Communicator* group) {
  return group != nullptr && group->size() > 1;
}

}  // namespace

Seams make_seams(const StageGroups& groups) {
  Seams seams;
  seams.region = tensor::make_region(groups.tp);
  if (!shared(groups.cp)) {
    seams.attention = attention::make_local_attention(groups.deterministic);
  } else {
    seams.attention = groups.cp_kind == ContextKind::ring
                          ? context::make_ring_attention(*groups.cp, groups.deterministic)
                          : context::make_ulysses_attention(*groups.cp, groups.deterministic);
  }
  if (shared(groups.ep) || shared(groups.stage))
    seams.experts = expert::make_rank_exchange(groups.ep, groups.stage);
  if (groups.sequence_slices && shared(groups.cp))
    throw Error("sequence slices do not go with context parallelism");
  seams.sequence_slices = groups.sequence_slices;
  seams.deterministic = groups.deterministic;
  return seams;
}

tokens::ContextOrder order_of(ContextKind kind) {
  return kind == ContextKind::ring ? tokens::ContextOrder::zigzag : tokens::ContextOrder::contiguous;
}

}  // namespace pptrain::models
