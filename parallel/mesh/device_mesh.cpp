#include "parallel/mesh/device_mesh.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"

namespace pptrain::mesh {
namespace {

constexpr std::array<std::pair<const char*, int MeshShape::*>, axis_count> names_and_sizes{
    {{"pp", &MeshShape::pp},
     {"dp_replicate", &MeshShape::dp_replicate},
     {"dp_shard", &MeshShape::dp_shard},
     {"cp", &MeshShape::cp},
     {"tp", &MeshShape::tp}}};

constexpr std::array group_names{"batch", "fsdp", "loss", "replica", "stage", "ep", "efsdp", "eloss"};
static_assert(group_names.size() == group_count);

// The axes that a group spans; for ep, efsdp and eloss, the axes of the group that these divide.
std::span<const Axis> axes_of(Group group) {
  static constexpr std::array batch{Axis::dp_replicate, Axis::dp_shard};
  static constexpr std::array fsdp{Axis::dp_shard, Axis::cp};
  static constexpr std::array loss{Axis::dp_replicate, Axis::dp_shard, Axis::cp};
  static constexpr std::array replica{Axis::dp_shard, Axis::cp, Axis::tp};
  static constexpr std::array stage{Axis::dp_replicate, Axis::dp_shard, Axis::cp, Axis::tp};
  static constexpr std::array<std::span<const Axis>, group_count> spans{batch, fsdp,    loss,    replica,
                                                                        stage, replica, replica, stage};
  return spans.at(static_cast<size_t>(group));
}

int ranks_of(const MeshShape& shape, std::span<const Axis> span) {
  int size = 1;
  for (const Axis axis : span) size *= shape.size(axis);
  return size;
}

// "dp_shard 2 x tp 3": those axes that have at least so many ranks.
std::string factors(const MeshShape& shape, std::span<const Axis> span, int least) {
  std::string text;
  for (const Axis axis : span) {
    if (shape.size(axis) >= least)
      text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name(axis), shape.size(axis));
  }
  return text;
}

// All ranks that differ from `at` along `span` alone.
std::vector<int> spanned(const MeshShape& shape, Coordinates at, std::span<const Axis> span) {
  if (span.empty()) return {rank_at(shape, at)};
  std::vector<int> ranks;
  for (int i = 0; i < shape.size(span.front()); ++i) {
    at[static_cast<int>(span.front())] = i;
    for (const int rank : spanned(shape, at, span.subspan(1))) ranks.push_back(rank);
  }
  return ranks;
}

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
  return names_and_sizes.at(static_cast<size_t>(axis)).first;
}

const char* name(Group group) {
  return group_names.at(static_cast<size_t>(group));
}

int MeshShape::world_size() const {
  return ranks_of(*this, axes);
}

int MeshShape::size(Axis axis) const {
  return this->*names_and_sizes.at(static_cast<size_t>(axis)).second;
}

int& MeshShape::size(Axis axis) {
  return this->*names_and_sizes.at(static_cast<size_t>(axis)).second;
}

int MeshShape::size(Group group) const {
  const int ranks = ranks_of(*this, axes_of(group));
  if (group == Group::ep) return ep;
  return group == Group::efsdp || group == Group::eloss ? ranks / ep : ranks;
}

std::vector<std::pair<std::string, int>> MeshShape::sizes() const {
  std::vector<std::pair<std::string, int>> all;
  for (const Axis axis : axes) all.emplace_back(name(axis), size(axis));
  all.emplace_back("ep", ep);
  return all;
}

std::string MeshShape::describe() const {
  const std::string text = factors(*this, axes, 2);
  return text.empty() ? "pp 1" : text;
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

int coordinate(const MeshShape& shape, int rank, Axis axis) {
  return coordinates(shape, rank)[static_cast<int>(axis)];
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
  return spanned(shape, coordinates(shape, rank), std::span(&axis, 1));
}

std::vector<int> group(const MeshShape& shape, int rank, Group group) {
  const std::vector<int> ranks = spanned(shape, coordinates(shape, rank), axes_of(group));
  if (group != Group::ep && group != Group::efsdp && group != Group::eloss) return ranks;
  const bool across = group != Group::ep;
  const auto place = static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
  const int first = across ? place % shape.ep : place / shape.ep * shape.ep;
  std::vector<int> part;
  for (int i = 0; i < shape.size(group); ++i) part.push_back(ranks[first + i * (across ? shape.ep : 1)]);
  return part;
}

void check_shape(const MeshShape& shape) {
  int64_t ranks = 1;
  for (const Axis axis : axes) {
    if (shape.size(axis) < 1) {
      throw UsageError(
          fmt::format("distributed.{} = {}: an axis has at least 1 rank", name(axis), shape.size(axis)));
    }
    ranks *= shape.size(axis);
    if (ranks > std::numeric_limits<int>::max()) {
      throw UsageError(fmt::format("distributed: {} are too many ranks", factors(shape, axes, 1)));
    }
  }
  const int replica = shape.size(Group::replica);
  if (shape.ep >= 1 && replica % shape.ep == 0) return;
  throw UsageError(
      fmt::format("distributed.ep = {} does not divide {} = {}, whose ranks share out the experts", shape.ep,
                  factors(shape, axes_of(Group::replica), 1), replica));
}

void check_world_size(const MeshShape& shape, int ranks) {
  check_shape(shape);
  if (ranks == shape.world_size()) return;
  throw UsageError(
      fmt::format("the job needs {0} rank{1} ({2}), but {3} {4} launched: start {0} process{5}{6}, or change "
                  "the sizes in "
                  "[distributed]",
                  shape.world_size(), shape.world_size() == 1 ? "" : "s", shape.describe(), ranks,
                  ranks == 1 ? "was" : "were", shape.world_size() == 1 ? "" : "es",
                  ranks == 1 ? ", or start without a launcher to run all ranks in one process" : ""));
}

void check_processes(const MeshShape& shape, int processes) {
  check_shape(shape);
  if (processes > shape.world_size()) check_world_size(shape, processes);
}

Block block_of(int process, int processes, int ranks) {
  const auto begin = [&](int64_t number) { return static_cast<int>(number * ranks / processes); };
  return {begin(process), begin(process + 1)};
}

std::string describe_blocks(int processes, int ranks) {
  std::vector<int> sizes;
  for (int process = 0; process < processes; ++process)
    sizes.push_back(block_of(process, processes, ranks).size());
  return fmt::format("{} ranks in {} process{}: {}", ranks, processes, processes == 1 ? "" : "es",
                     fmt::join(sizes, " + "));
}

DeviceMesh::DeviceMesh(comm::Communicator& world, const MeshShape& shape, std::vector<int> hosts)
    : world_(world), shape_(shape), hosts_(std::move(hosts)) {
  check_world_size(shape, world.size());
  at_ = coordinates(shape, world.rank());
  along(Axis::pp).connect(ring(shape.pp));
}

int DeviceMesh::place(Group group) const {
  const std::vector<int> ranks = mesh::group(shape_, rank(), group);
  return static_cast<int>(std::ranges::find(ranks, rank()) - ranks.begin());
}

comm::Communicator& DeviceMesh::along(Axis axis) {
  auto& made = axes_[static_cast<int>(axis)];
  if (!made) made = make(name(axis), mesh::group(shape_, rank(), axis));
  return *made;
}

comm::Communicator& DeviceMesh::of(Group group) {
  auto& made = groups_[static_cast<int>(group)];
  if (!made) made = make(name(group), mesh::group(shape_, rank(), group));
  return *made;
}

std::unique_ptr<comm::Communicator> DeviceMesh::make(const char* name, const std::vector<int>& ranks) {
  std::vector<int> hosts;
  if (!hosts_.empty())
    std::ranges::transform(ranks, std::back_inserter(hosts), [&](int r) { return hosts_.at(r); });
  if (logs(Subsystem::comm, spdlog::level::debug)) {
    std::string blocks;
    if (!hosts.empty())
      blocks = fmt::format(", in blocks of {} on a host", comm::HostBlocks::within(hosts).block);
    log_of(Subsystem::comm).debug("group {}: ranks {}{}", name, fmt::join(ranks, ","), blocks);
  }
  if (ranks.size() == 1) return comm::make_self(world_);
  std::unique_ptr<comm::Communicator> group = world_.subgroup(ranks);
  if (!hosts.empty()) group->set_hosts(hosts);
  return group;
}

}  // namespace pptrain::mesh
