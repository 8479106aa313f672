#include "app/forecast/sharding.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

namespace pptrain::app {
namespace {

int64_t piece(int64_t elements, int parts) {
  return (elements + parts - 1) / parts;
}

int64_t largest(std::vector<int64_t> bytes, size_t count) {
  std::ranges::sort(bytes, std::greater());
  const auto end = bytes.begin() + static_cast<std::ptrdiff_t>(std::min(count, bytes.size()));
  return std::accumulate(bytes.begin(), end, int64_t{0});
}

}  // namespace

// With one reduction a step each rank sums all microbatches in whole buffers, of which its part is a view.
// With one a microbatch it holds its parts, and whole buffers of the groups on their way beside them. Of an
// embedding in shards the first stage's rank keeps all compute weights and the whole gradient.
HeldBytes held_bytes(const StageFootprint& stage, const mesh::MeshShape& mesh,
                     const schedule::ShardOptions& shard) {
  const bool every_microbatch = shard.reduce == schedule::Reduce::microbatch;
  HeldBytes held;
  std::vector<int64_t> gathered, whole;
  for (const GroupFootprint& group : stage.groups) {
    const int parts = shards_of(group, mesh);
    int64_t compute = 0, gradient = 0;
    for (const BufferFootprint& buffer : group.buffers) {
      const int64_t own = piece(buffer.elements, parts);
      compute += buffer.elements * buffer.compute_bytes;
      if (buffer.frozen) {
        held.weights += own * buffer.compute_bytes;
        continue;
      }
      held.parameters += own;
      held.weights += own * (buffer.compute_bytes == 4 ? 4 : 4 + buffer.compute_bytes);
      if (every_microbatch) held.gradients += 4 * own;
      gradient += 4 * (group.in_passes ? buffer.elements : own);
    }
    if (group.pipeline_shards > 1) {
      if (group.in_passes) held.weights += compute;
    } else if (parts > 1) {
      gathered.push_back(compute);
    }
    whole.push_back(gradient);
  }
  held.gathered =
      largest(gathered, shard.gather == schedule::Gather::streamed ? groups_under_way : gathered.size());
  (every_microbatch ? held.reducing : held.gradients) =
      largest(whole, every_microbatch ? groups_under_way : whole.size());
  return held;
}

schedule::StageBytes pass_bytes(const StageFootprint& stage, const HeldBytes& held) {
  schedule::StageBytes bytes = stage.bytes();
  bytes.gathered = held.gathered;
  bytes.reducing = held.reducing;
  return bytes;
}

StageExchange stage_exchange(const StageFootprint& stage, const MeshLinks& links) {
  StageExchange seconds;
  for (const GroupFootprint& group : stage.groups) {
    if (!group.in_passes) continue;
    const GroupLink& divided = links.of(group.experts ? mesh::Group::efsdp : mesh::Group::fsdp);
    const GroupLink& summed = links.of(group.experts ? mesh::Group::eloss : mesh::Group::loss);
    const GroupLink& replicas = links.along(mesh::Axis::dp_replicate);
    for (const BufferFootprint& buffer : group.buffers) {
      const auto elements = static_cast<double>(buffer.elements);
      const double gather = divided.gather(elements * buffer.compute_bytes);
      seconds.gather += gather;
      if (group.adapters) seconds.adapters += gather;
      if (buffer.frozen) continue;
      seconds.sum += summed.reduce_scatter(4 * elements);
      seconds.replicate += replicas.gather(4 * elements / divided.ranks);
      if (buffer.copies != nn::Copies::one)
        seconds.copies += links.along(mesh::Axis::tp).all_reduce(4 * elements);
    }
  }
  return seconds;
}

}  // namespace pptrain::app
