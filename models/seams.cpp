#include "models/seams.h"

#include "core/base/error.h"

namespace pptrain::models {
namespace {

bool shared(const comm::Communicator* group) {
  return group != nullptr && group->size() > 1;
}

}  // namespace

Seams make_seams(const StageGroups& groups) {
  if (shared(groups.tp)) throw Error("no seam for tensor parallelism");
  if (shared(groups.cp)) throw Error("no seam for context parallelism");
  if (shared(groups.ep)) throw Error("no seam for expert parallelism");
  return {};
}

}  // namespace pptrain::models
