#include "models/seams.h"

#include <spdlog/fmt/fmt.h>

#include "core/base/error.h"
#include "parallel/context/ring_attention.h"
#include "parallel/context/ulysses_attention.h"
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
    seams.attention = nn::make_local_attention(groups.attention);
  } else {
    seams.attention = groups.cp_kind == ContextKind::ring
                          ? context::make_ring_attention(*groups.cp, groups.attention)
                          : context::make_ulysses_attention(*groups.cp, groups.attention);
  }
  if (shared(groups.ep) || shared(groups.stage))
    seams.experts = std::make_shared<expert::RankExchange>(groups.ep, groups.stage);
  return seams;
}

tokens::ContextOrder order_of(ContextKind kind) {
  return kind == ContextKind::ring ? tokens::ContextOrder::zigzag : tokens::ContextOrder::contiguous;
}

}  // namespace pptrain::models
