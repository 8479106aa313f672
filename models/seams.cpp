#include "models/seams.h"

#include "core/base/error.h"
#include "parallel/expert/rank_exchange.h"
#include "parallel/tensor/tensor_region.h"

namespace pptrain::models {
namespace {

bool shared(const comm::Communicator* group) {
  return group != nullptr && group->size() > 1;
}

}  // namespace

Seams make_seams(const StageGroups& groups) {
  if (shared(groups.cp)) throw Error("no seam for context parallelism");
  Seams seams;
  seams.region = tensor::make_region(groups.tp);
  if (shared(groups.ep) || shared(groups.stage))
    seams.experts = std::make_shared<expert::RankExchange>(groups.ep, groups.stage);
  return seams;
}

}  // namespace pptrain::models
