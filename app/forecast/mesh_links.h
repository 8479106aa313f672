// How fast the groups of a mesh exchange: which of them stay within a host, and what a collective takes.
#pragma once

#include <array>

#include "app/forecast/device_model.h"
#include "parallel/mesh/device_mesh.h"

namespace pptrain::app {

// What each rank of a group has to the others of it.
struct GroupLink {
  int ranks = 1;               // of the group
  bool between_hosts = false;  // the group spans several
  Link link{};                 // bandwidth: that a rank sends at to all the others together

  // Seconds in which every rank sends `bytes` to the others, in `messages`. What one collective sends goes
  // out at once, or along a tree: of the group's size - 1 messages, log2(size) follow each other.
  double seconds(double bytes, double messages) const;

  // Collectives on `bytes` of the whole result (gather) or operand (the others) on every rank; 0 alone.
  double gather(double bytes) const;
  double reduce_scatter(double bytes) const { return gather(bytes); }
  double all_reduce(double bytes) const { return 2 * gather(bytes); }
  double broadcast() const;  // until all know a few values that one knows
};

// World ranks follow each other on hosts of DeviceModel::ranks_per_host, so with tp innermost the inner axes
// stay on a host as far as it reaches. Ranks of a group on one host send to other hosts through all their
// links: between hosts, a group with k of its ranks on each has k times a rank's bandwidth, within the
// host's.
class MeshLinks {
 public:
  MeshLinks(const DeviceModel& device, const mesh::MeshShape& shape);

  const GroupLink& along(mesh::Axis axis) const { return axes_[static_cast<size_t>(axis)]; }
  const GroupLink& of(mesh::Group group) const { return groups_[static_cast<size_t>(group)]; }
  const GroupLink& world() const { return world_; }

  // Seconds of a message of `bytes` from a rank of pipeline rank `from` to the same of `to`, the slowest of
  // them.
  double transfer(int from, int to, double bytes) const;

 private:
  int host(int rank) const { return rank / ranks_per_host_; }
  template <typename Which>
  GroupLink link_of(const Which& which) const;

  DeviceModel device_;
  mesh::MeshShape shape_;
  int ranks_per_host_;
  std::array<GroupLink, mesh::axis_count> axes_;
  std::array<GroupLink, mesh::group_count> groups_;
  GroupLink world_;
};

}  // namespace pptrain::app
