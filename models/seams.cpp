#include "models/seams.h"

#include "core/base/error.h"
#include "parallel/tensor/tensor_region.h"

namespace pptrain::models {
namespace {

bool shared(const comm::Communicator* group) {
  return group != nullptr && group->size() > 1;
}

}  // namespace

Seams make_seams(const StageGroups& groups) {
  if (shared(groups.cp)) throw Error("no seam for context parallelism");
  if (shared(groups.ep)) throw Error("no seam for expert parallelism");
  Seams seams;
  seams.region = tensor::make_region(groups.tp);
  return seams;
}

}  // namespace pptrain::models
