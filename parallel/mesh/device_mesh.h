// The device mesh: a world of ranks as a grid with named axes, pp outermost, tp innermost.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace pptrain::mesh {

// Nesting order, outermost first.
enum class Axis { pp, dp_replicate, dp_shard, cp, tp };
inline constexpr int axis_count = 5;
const char* name(Axis axis);

struct MeshShape {
  int pp = 1, dp_replicate = 1, dp_shard = 1, cp = 1, tp = 1;
  int world_size() const { return pp * dp_replicate * dp_shard * cp * tp; }
  int size(Axis axis) const;
  // "pp 2 x dp_replicate 2 = 4": the factors above 1, for messages.
  std::string describe() const;
};

using Coordinates = std::array<int, axis_count>;
Coordinates coordinates(const MeshShape& shape, int rank);
int rank_at(const MeshShape& shape, const Coordinates& at);
// World ranks of the group of `rank` along `axis`, in axis order.
std::vector<int> group(const MeshShape& shape, int rank, Axis axis);

// Throws UsageError that names every factor when the world has another number of ranks than the shape.
void check_world_size(const MeshShape& shape, int ranks);

// One rank's communicators. Groups are set up eagerly, in the same order on every rank.
class DeviceMesh {
 public:
  // Throws UsageError that names the factors when world.size() differs from the shape's.
  DeviceMesh(comm::Communicator& world, const MeshShape& shape);

  const MeshShape& shape() const { return shape_; }
  int rank() const { return world_.rank(); }
  int coordinate(Axis axis) const { return at_[static_cast<int>(axis)]; }
  int size(Axis axis) const { return shape_.size(axis); }
  comm::Communicator& world() { return world_; }
  comm::Communicator& along(Axis axis) { return *groups_[static_cast<int>(axis)]; }

 private:
  comm::Communicator& world_;
  MeshShape shape_;
  Coordinates at_;
  std::array<std::unique_ptr<comm::Communicator>, axis_count> groups_;
};

}  // namespace pptrain::mesh
