// How fast the groups of a mesh exchange: which of them stay within a host, and what a collective takes.
#pragma once

#include <array>
#include <optional>

#include "app/forecast/device_model.h"
#include "parallel/mesh/device_mesh.h"
#include "parallel/mesh/gpu_blocks.h"

namespace pptrain::app {

// What connects each rank of a group to the others.
struct GroupLink {
  int ranks = 1;               // of the group
  bool between_hosts = false;  // the group spans several
  Link link{};                 // bandwidth: a rank's, to all others together
  // Between hosts: so many ranks share one and send what is the same for them once (comm::HostBlocks), after
  // an exchange among themselves at `within` B/s.
  int together = 1;
  double within = 0;

  // Seconds in which every rank sends `bytes` to the others, in `messages`. They go out at once, or along a
  // tree: log2(size) of the group's size - 1 messages follow each other.
  double seconds(double bytes, double messages) const;
  // The same of sums and gathers.
  double shared_seconds(double bytes, double messages) const;

  // Sums and gathers on `bytes` of the whole result (gather) or operand (the others) on every rank; 0 for one
  // rank.
  double gather(double bytes) const;
  double reduce_scatter(double bytes) const { return gather(bytes); }
  double all_reduce(double bytes) const { return 2 * gather(bytes); }
  double broadcast() const;  // until all know a few values that one knows
};

// World ranks follow each other on hosts of DeviceModel::ranks_per_host. With tp innermost, the inner axes
// stay within a host as far as it reaches. In sums and gathers a block of ranks on one host sends to other
// hosts what one rank would, through the links of all.
class MeshLinks {
 public:
  // blocks: with which NCCL moves what GPUs exchange, which bounds the bandwidth of single messages and of
  // groups within a host.
  MeshLinks(const DeviceModel& device, const mesh::MeshShape& shape,
            const std::optional<mesh::GpuBlocks>& blocks = std::nullopt);

  const GroupLink& along(mesh::Axis axis) const { return axes_[static_cast<size_t>(axis)]; }
  const GroupLink& of(mesh::Group group) const { return groups_[static_cast<size_t>(group)]; }
  const GroupLink& world() const { return world_; }

  // Seconds of a message of `bytes` from a rank of pipeline rank `from` to its counterpart in `to`; the
  // slowest of them.
  double transfer(int from, int to, double bytes) const;
  // The same of one to each other pipeline rank at once: a rank has one link to all of them. Of NCCL's thread
  // blocks each message has one (comm::connect_with_one).
  double transfer_to_all(int from, double bytes) const;

 private:
  int host(int rank) const { return rank / ranks_per_host_; }
  const Link& link(int from, int to) const;  // between pipeline ranks
  template <typename Which>
  GroupLink link_of(const Which& which) const;

  DeviceModel device_;
  double block_bandwidth_, group_bandwidth_;  // B/s at most: of a thread block, and of a group
  mesh::MeshShape shape_;
  int ranks_per_host_;
  std::array<GroupLink, mesh::axis_count> axes_;
  std::array<GroupLink, mesh::group_count> groups_;
  GroupLink world_;
};

}  // namespace pptrain::app
