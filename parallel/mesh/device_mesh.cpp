#include "parallel/mesh/device_mesh.h"

#include <spdlog/fmt/fmt.h>

#include <utility>

#include "core/base/error.h"

namespace pptrain::mesh {
namespace {

constexpr std::array<Axis, axis_count> axes{Axis::pp, Axis::dp_replicate, Axis::dp_shard, Axis::cp, Axis::tp};

// Neighbours around the ring, both ways: what stages exchange under any placement, tied ends included.
std::vector<std::pair<int, int>> ring(int size) {
  std::vector<std::pair<int, int>> pairs;
  for (int r = 0; r < size && size > 1; ++r) {
    const int next = (r + 1) % size;
    pairs.emplace_back(r, next);
    if (size > 2) pairs.emplace_back(next, r);
  }
  return pairs;
}

}  // namespace

const char* name(Axis axis) {
  switch (axis) {
    case Axis::pp:
      return "pp";
    case Axis::dp_replicate:
      return "dp_replicate";
    case Axis::dp_shard:
      return "dp_shard";
    case Axis::cp:
      return "cp";
    case Axis::tp:
      return "tp";
  }
  throw Error("unknown axis");
}

int MeshShape::size(Axis axis) const {
  switch (axis) {
    case Axis::pp:
      return pp;
    case Axis::dp_replicate:
      return dp_replicate;
    case Axis::dp_shard:
      return dp_shard;
    case Axis::cp:
      return cp;
    case Axis::tp:
      return tp;
  }
  throw Error("unknown axis");
}

std::string MeshShape::describe() const {
  std::string factors;
  for (const Axis axis : axes) {
    if (size(axis) > 1)
      factors += fmt::format("{}{} {}", factors.empty() ? "" : " x ", name(axis), size(axis));
  }
  return fmt::format("{} = {}", factors.empty() ? "pp 1" : factors, world_size());
}

Coordinates coordinates(const MeshShape& shape, int rank) {
  if (rank < 0 || rank >= shape.world_size()) {
    throw Error(fmt::format("rank {} is not in a mesh of {}", rank, shape.describe()));
  }
  Coordinates at{};
  for (int a = axis_count - 1; a >= 0; --a) {
    at[a] = rank % shape.size(axes[a]);
    rank /= shape.size(axes[a]);
  }
  return at;
}

int rank_at(const MeshShape& shape, const Coordinates& at) {
  int rank = 0;
  for (int a = 0; a < axis_count; ++a) {
    const int size = shape.size(axes[a]);
    if (at[a] < 0 || at[a] >= size) {
      throw Error(fmt::format("coordinate {} on axis {} of size {}", at[a], name(axes[a]), size));
    }
    rank = rank * size + at[a];
  }
  return rank;
}

std::vector<int> group(const MeshShape& shape, int rank, Axis axis) {
  Coordinates at = coordinates(shape, rank);
  std::vector<int> ranks;
  for (int i = 0; i < shape.size(axis); ++i) {
    at[static_cast<int>(axis)] = i;
    ranks.push_back(rank_at(shape, at));
  }
  return ranks;
}

void check_world_size(const MeshShape& shape, int ranks) {
  for (const Axis axis : axes) {
    if (shape.size(axis) < 1) {
      throw UsageError(
          fmt::format("distributed.{} = {}: an axis has at least 1 rank", name(axis), shape.size(axis)));
    }
  }
  if (ranks == shape.world_size()) return;
  throw UsageError(
      fmt::format("the job needs {} ranks, but {} {} launched: start {} processes, or change the factors in "
                  "[distributed]",
                  shape.describe(), ranks, ranks == 1 ? "was" : "were", shape.world_size()));
}

DeviceMesh::DeviceMesh(comm::Communicator& world, const MeshShape& shape) : world_(world), shape_(shape) {
  check_world_size(shape, world.size());
  at_ = coordinates(shape, world.rank());
  for (const Axis axis : axes) {
    // A group is named by its first rank.
    const int color = group(shape, world.rank(), axis).front();
    groups_[static_cast<int>(axis)] = world.split(color, at_[static_cast<int>(axis)]);
  }
  along(Axis::pp).connect(ring(shape.pp));
}

}  // namespace pptrain::mesh
