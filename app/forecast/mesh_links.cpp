#include "app/forecast/mesh_links.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/host_blocks.h"

namespace pptrain::app {
namespace {

constexpr double unbounded = std::numeric_limits<double>::infinity();

double rounds(int ranks) {
  return std::ceil(std::log2(static_cast<double>(ranks)));
}

}  // namespace

double GroupLink::seconds(double bytes, double messages) const {
  if (ranks <= 1) return 0;
  return bytes / link.bandwidth + messages / (ranks - 1) * rounds(ranks) * link.latency;
}

double GroupLink::shared_seconds(double bytes, double messages) const {
  if (together == 1) return seconds(bytes, messages);
  const double whole = bytes * ranks / (ranks - 1);
  return whole * (together - 1) / together / within +
         seconds(whole * (ranks - together) / ranks / together, messages);
}

double GroupLink::gather(double bytes) const {
  return shared_seconds(bytes * (ranks - 1) / ranks, ranks - 1);
}

double GroupLink::broadcast() const {
  return ranks > 1 ? rounds(ranks) * link.latency : 0;
}

MeshLinks::MeshLinks(const DeviceModel& device, const mesh::MeshShape& shape,
                     const std::optional<mesh::GpuBlocks>& blocks)
    : device_(device),
      block_bandwidth_(blocks ? device.block_bandwidth : unbounded),
      group_bandwidth_(blocks && blocks->groups > 0 ? blocks->of_group * device.block_bandwidth : unbounded),
      shape_(shape),
      ranks_per_host_(device.ranks_per_host > 0 ? device.ranks_per_host : shape.world_size()) {
  for (int axis = 0; axis < mesh::axis_count; ++axis)
    axes_[static_cast<size_t>(axis)] = link_of(static_cast<mesh::Axis>(axis));
  for (int group = 0; group < mesh::group_count; ++group)
    groups_[static_cast<size_t>(group)] = link_of(static_cast<mesh::Group>(group));
  world_ = {.ranks = shape.world_size(),
            .between_hosts = shape.world_size() > ranks_per_host_,
            .link = shape.world_size() > ranks_per_host_ ? device.between_hosts : device.within_host};
}

// Groups repeat along the world. If any spans hosts, so does rank 0's group or the group of the first host's
// last rank. Blocks are taken from these two; those of unlike groups may be smaller.
template <typename Which>
GroupLink MeshLinks::link_of(const Which& which) const {
  GroupLink result{.ranks = shape_.size(which), .between_hosts = false, .link = device_.within_host};
  result.link.bandwidth = std::min(result.link.bandwidth, group_bandwidth_);
  if (result.ranks == 1 || shape_.world_size() <= ranks_per_host_) return result;
  int smallest = result.ranks;  // block of a group
  for (const int rank : {0, ranks_per_host_ - 1}) {
    std::vector<int> hosts;
    for (const int member : mesh::group(shape_, rank, which)) hosts.push_back(host(member));
    const comm::HostBlocks blocks = comm::HostBlocks::within(hosts);
    if (blocks.count() > 1) smallest = std::min({smallest, blocks.block, blocks.size(blocks.count() - 1)});
  }
  if (smallest == result.ranks) return result;
  result.between_hosts = true;
  result.together = smallest;
  result.within = result.link.bandwidth;
  result.link = {.bandwidth = std::min(result.within, device_.between_hosts.bandwidth),
                 .latency = device_.between_hosts.latency};
  return result;
}

const Link& MeshLinks::link(int from, int to) const {
  const int stride = shape_.world_size() / shape_.pp;  // pp is the outermost axis
  bool crosses = false;
  for (int i = 0; i < stride && !crosses; ++i) crosses = host(from * stride + i) != host(to * stride + i);
  return crosses ? device_.between_hosts : device_.within_host;
}

double MeshLinks::transfer(int from, int to, double bytes) const {
  const Link& way = link(from, to);
  return way.latency + bytes / std::min(way.bandwidth, comm::Communicator::link_blocks * block_bandwidth_);
}

double MeshLinks::transfer_to_all(int from, double bytes) const {
  double together = 0, slowest = 0;
  for (int to = 0; to < shape_.pp; ++to) {
    if (to == from) continue;
    const Link& way = link(from, to);
    together += way.latency + bytes / way.bandwidth;
    slowest = std::max(slowest, way.latency + bytes / std::min(way.bandwidth, block_bandwidth_));
  }
  return std::max(together, slowest);
}

}  // namespace pptrain::app
