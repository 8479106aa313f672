#include "app/plan/sharding_options.h"

namespace pptrain::app {

bool reshards_after_forward(const config::DistributedSection& distributed) {
  return distributed.reshard_after_forward.value_or(distributed.pp == 1);
}

models::ContextKind context_kind(const config::DistributedSection& distributed) {
  return distributed.cp_kind == "ulysses" ? models::ContextKind::ulysses : models::ContextKind::ring;
}

models::Sharding sharding_of(const PlanBase& base) {
  const config::DistributedSection& d = base.job.distributed;
  models::Sharding sharding{.dense = base.mesh.size(mesh::Group::fsdp),
                            .experts = base.mesh.size(mesh::Group::efsdp),
                            .every_microbatch = d.reduce_gradients == "microbatch"};
  sharding.streamed = sharding.divided() && reshards_after_forward(d);
  return sharding;
}

schedule::LowerOptions lower_options(const PlanBase& base) {
  const models::Sharding sharding = sharding_of(base);
  return {
      .shard = {.unshard = sharding.divided(),
                .streamed = sharding.streamed,
                .reduce = sharding.every_microbatch ? schedule::Reduce::microbatch : schedule::Reduce::step}};
}

}  // namespace pptrain::app
