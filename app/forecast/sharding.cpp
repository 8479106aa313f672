#include "app/forecast/sharding.h"

#include <algorithm>
#include <vector>

#include "parallel/schedule/cost/streamed_groups.h"

namespace pptrain::app {
namespace {

int64_t piece(int64_t elements, int parts) {
  return (elements + parts - 1) / parts;
}

int64_t sum_of(const std::vector<schedule::GroupBytes>& groups) {
  int64_t bytes = 0;
  for (const schedule::GroupBytes& group : groups) bytes += group.bytes;
  return bytes;
}

int64_t elements_of(const GroupFootprint& group) {
  int64_t sum = 0;
  for (const BufferFootprint& buffer : group.buffers) sum += buffer.elements;
  return sum;
}

}  // namespace

// With one reduction a step, each rank sums all microbatches in whole buffers; its shard is a view of them.
// With one a microbatch, it holds its shards, and whole buffers of the groups being reduced. If the embedding
// is sharded over pipeline ranks, the first stage's rank keeps all compute weights and the whole gradient.
HeldBytes held_bytes(const StageFootprint& stage, const mesh::MeshShape& mesh,
                     const schedule::ShardOptions& shard) {
  const bool every_microbatch = shard.reduce == schedule::Reduce::microbatch;
  HeldBytes held;
  std::vector<schedule::GroupBytes> gathered, whole;
  int64_t largest = 0;
  for (const GroupFootprint& group : stage.groups) {
    const int parts = shards_of(group, mesh);
    const int64_t elements = elements_of(group);
    largest = std::max(largest, elements);
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
      gathered.push_back({elements, compute + group.fp8_bytes});
    } else {
      held.weights += group.fp8_bytes;
    }
    whole.push_back({elements, gradient});
  }
  const bool streamed = shard.gather == schedule::Gather::streamed;
  held.gathered = streamed ? schedule::most_streamed_bytes(gathered, largest) : sum_of(gathered);
  if (every_microbatch) {
    held.reducing = schedule::most_streamed_bytes(whole, largest);
  } else {
    held.gradients = sum_of(whole);
  }
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
