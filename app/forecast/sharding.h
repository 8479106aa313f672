// What a rank holds of its stages' parameters between passes, and what ranks exchange of them. Follows from
// the sizes of parameter groups and the mesh alone.
#pragma once

#include <cstdint>

#include "app/forecast/footprint.h"
#include "app/forecast/mesh_links.h"
#include "parallel/mesh/device_mesh.h"
#include "parallel/schedule/cost/memory.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::app {

// Ranks over which the masters of the group are sharded.
inline int shards_of(const GroupFootprint& group, const mesh::MeshShape& mesh) {
  return group.pipeline_shards * mesh.size(group.experts ? mesh::Group::efsdp : mesh::Group::fsdp);
}

struct HeldBytes {
  int64_t weights = 0;     // this rank's shard: float32 masters and compute copies
  int64_t gradients = 0;   // float32
  int64_t parameters = 0;  // elements that this rank's optimizer steps
  // While passes run.
  int64_t gathered = 0;  // whole compute weights of sharded groups
  int64_t reducing = 0;  // gradients of single microbatches, if reduced one by one
};

// Bytes of a rank's stage. The gaps between parameters, of less than 64 elements each, are left out.
HeldBytes held_bytes(const StageFootprint& stage, const mesh::MeshShape& mesh,
                     const schedule::ShardOptions& shard);

// What the stage holds while passes run, as schedule::peak_bytes wants it. `held`: by the same stage.
schedule::StageBytes pass_bytes(const StageFootprint& stage, const HeldBytes& held);

// Seconds of exchanging one stage's parameters, all groups of it, once.
struct StageExchange {
  double gather = 0;     // compute weights, over the ranks that shard them
  double adapters = 0;   // part of it: the adapters' weights, which W reads too
  double sum = 0;        // gradients, to the rank with their shard (reduce-scatter)
  double replicate = 0;  // summed gradients, between replicas (all-gather)
  double copies = 0;     // gradients of parameters that several tp ranks hold (all-reduce)

  double reduce() const { return sum + replicate + copies; }
  // Within a pass of this kind.
  double gather_of(schedule::ActionKind kind) const {
    if (schedule::needs_weights(kind)) return gather;
    return kind == schedule::ActionKind::backward_weight ? adapters : 0;
  }
};
StageExchange stage_exchange(const StageFootprint& stage, const MeshLinks& links);

}  // namespace pptrain::app
