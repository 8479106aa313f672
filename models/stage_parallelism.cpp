#include "models/stage_parallelism.h"

#include <spdlog/fmt/fmt.h>

#include "core/base/error.h"
#include "parallel/axes/context/context_attention.h"
#include "parallel/axes/expert/rank_exchange.h"
#include "parallel/axes/tensor/tensor_group.h"

namespace pptrain::models {
namespace {

bool shared(const comm::Communicator* group) {
  return group != nullptr && group->size() > 1;
}

}  // namespace

StageParallelism make_stage_parallelism(const StageGroups& groups) {
  StageParallelism parallelism;
  parallelism.tp = tensor::make_tensor_group(groups.tp);
  if (!shared(groups.cp)) {
    parallelism.attention = attention::make_local_attention(groups.deterministic);
  } else {
    parallelism.attention = groups.cp_kind == ContextKind::ring
                                ? context::make_ring_attention(*groups.cp, groups.deterministic)
                                : context::make_ulysses_attention(*groups.cp, groups.deterministic);
  }
  if (shared(groups.ep) || shared(groups.stage))
    parallelism.experts = expert::make_rank_exchange(groups.ep, groups.stage);
  parallelism.deterministic = groups.deterministic;
  return parallelism;
}

tokens::ContextOrder order_of(ContextKind kind) {
  return kind == ContextKind::ring ? tokens::ContextOrder::zigzag : tokens::ContextOrder::contiguous;
}

}  // namespace pptrain::models
