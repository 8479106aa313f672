// The device mesh: a world of ranks as a grid with named axes, pp outermost, tp innermost.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/communicator.h"

namespace pptrain::mesh {

// Nesting order, outermost first.
enum class Axis { pp, dp_replicate, dp_shard, cp, tp };
inline constexpr std::array axes{Axis::pp, Axis::dp_replicate, Axis::dp_shard, Axis::cp, Axis::tp};
inline constexpr int axis_count = axes.size();
const char* name(Axis axis);

// Groups that span several axes, with the names of torchtitan's ParallelDims if it has them. Ranks of a group
// are in the order of the world, so that those of a host are neighbours, and a sum has the same bits however
// the data ranks are divided between dp_replicate and dp_shard.
enum class Group {
  batch,    // dp_replicate x dp_shard: ranks that read different samples
  fsdp,     // dp_shard x cp: ranks over which a parameter group is sharded
  loss,     // dp_replicate x dp_shard x cp: ranks over which gradients, losses and token counts are summed
  replica,  // dp_shard x cp x tp: ranks over which one replica of the same pipeline stages is sharded
  stage,    // dp_replicate x dp_shard x cp x tp: all ranks that hold the same pipeline stages
  ep,       // `ep` neighbours within a replica: ranks that hold different experts of the same layers
  efsdp,    // of replica every ep-th: ranks with the same experts, over which their parameter groups are
            // sharded
  eloss,    // of stage every ep-th: ranks over which the gradients of these experts are summed
};
inline constexpr int group_count = 8;
const char* name(Group group);

struct MeshShape {
  int pp = 1, dp_replicate = 1, dp_shard = 1, cp = 1, tp = 1;
  // So many ranks in a row, of the dp_shard x cp x tp ranks of a stage's replica, hold different experts. No
  // factor of the world's size.
  int ep = 1;

  int world_size() const;
  // Do ranks of a stage exchange within a pass?
  bool exchanges_in_passes() const { return tp > 1 || cp > 1 || ep > 1; }
  int size(Axis axis) const;
  int& size(Axis axis);
  int size(Group group) const;
  bool operator==(const MeshShape&) const = default;
  // Sizes of every axis, outermost first, and of ep, by the names of the job's keys.
  std::vector<std::pair<std::string, int>> sizes() const;
  // "pp 2 x dp_replicate 2": the factors above 1, for messages.
  std::string describe() const;
};

// Throws UsageError for a shape that no world has: a factor below 1, too many ranks, or an ep that does not
// divide dp_shard * cp * tp.
void check_shape(const MeshShape& shape);
// The same, and UsageError that names every factor when the world has another number of ranks than the shape.
void check_world_size(const MeshShape& shape, int ranks);
// The same for launched processes, each of which may have several ranks.
void check_processes(const MeshShape& shape, int processes);

// Ranks [first, end) of a process, where fewer processes than ranks were launched. Neighbours along tp and cp
// mostly share a process.
struct Block {
  int first = 0, end = 0;

  int size() const { return end - first; }
};
Block block_of(int process, int processes, int ranks);
// "8 ranks in 3 processes: 2 + 3 + 3".
std::string describe_blocks(int processes, int ranks);

// --- pure functions of a shape that check_shape accepts; they throw Error for ranks outside of it ---
using Coordinates = std::array<int, axis_count>;
Coordinates coordinates(const MeshShape& shape, int rank);
int coordinate(const MeshShape& shape, int rank, Axis axis);
int rank_at(const MeshShape& shape, const Coordinates& at);
// World ranks of the group of `rank`, in the group's order; along an axis, that is in axis order.
std::vector<int> group(const MeshShape& shape, int rank, Axis axis);
std::vector<int> group(const MeshShape& shape, int rank, Group group);

// One rank's communicators. A communicator is made at its first use. All ranks of a group must ask for it, in
// the same order on every rank. `size` and `place` make none.
class DeviceMesh {
 public:
  // Connects the ring of pp. Throws as check_world_size does. `world` must outlive the mesh.
  // hosts: [rank] as comm::host_numbers() gives it; empty: not known, or only one.
  DeviceMesh(comm::Communicator& world, const MeshShape& shape, std::vector<int> hosts = {});

  const MeshShape& shape() const { return shape_; }
  int rank() const { return world_.rank(); }
  int coordinate(Axis axis) const { return at_[static_cast<int>(axis)]; }
  int size(Axis axis) const { return shape_.size(axis); }
  int size(Group group) const { return shape_.size(group); }
  // This rank's rank in its group.
  int place(Group group) const;
  comm::Communicator& world() { return world_; }
  comm::Communicator& along(Axis axis);
  comm::Communicator& of(Group group);

 private:
  std::unique_ptr<comm::Communicator> make(const char* name, const std::vector<int>& ranks);

  comm::Communicator& world_;
  MeshShape shape_;
  std::vector<int> hosts_;
  Coordinates at_;
  std::array<std::unique_ptr<comm::Communicator>, axis_count> axes_;
  std::array<std::unique_ptr<comm::Communicator>, group_count> groups_;
};

}  // namespace pptrain::mesh
