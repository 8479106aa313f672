#include "parallel/mesh/gpu_blocks.h"

#include <algorithm>
#include <bit>

#include "parallel/comm/communicator.h"

namespace pptrain::mesh {
namespace {

// Both directions to and from each other rank, of one block each (comm::connect_with_one, HeadExchange).
int star(int ranks) {
  return 2 * (ranks - 1);
}

}  // namespace

GpuBlocks gpu_blocks(const MeshShape& shape, const GpuExchanges& exchanges) {
  GpuBlocks blocks;
  const int neighbours = std::min(shape.pp - 1, 2);
  blocks.links = comm::Communicator::link_blocks * (2 * neighbours + (exchanges.ring ? star(shape.cp) : 0));
  blocks.links += exchanges.one_to_all * star(shape.pp);
  if (exchanges.of_ends) blocks.links += star(2);
  for (const Axis axis : {Axis::tp, Axis::cp, Axis::dp_replicate}) blocks.groups += shape.size(axis) > 1;
  for (const Group group : {Group::fsdp, Group::loss, Group::stage}) blocks.groups += shape.size(group) > 1;
  if (exchanges.experts) {
    for (const Group group : {Group::ep, Group::efsdp, Group::eloss}) blocks.groups += shape.size(group) > 1;
  }
  if (exchanges.kv_copies) ++blocks.groups;
  if (exchanges.pipeline_gather) ++blocks.groups;
  if (blocks.groups == 0) return blocks;
  const int most = std::clamp((GpuBlocks::most - blocks.links) / blocks.groups, 0, GpuBlocks::most_of_group);
  // NCCL rounds the channels of sends and receives up to a power of two (ncclTopoComputeP2pChannels).
  blocks.of_group = static_cast<int>(std::bit_floor(static_cast<unsigned>(most)));
  return blocks;
}

}  // namespace pptrain::mesh
