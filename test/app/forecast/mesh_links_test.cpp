// Which groups of a mesh cross hosts, and how long their exchanges take.
#include "app/forecast/mesh_links.h"

#include <array>
#include <optional>

#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::app;
using mesh::Axis;
using mesh::Group;
using mesh::MeshShape;

namespace {

// Within a host 100 B/s and 1 s a message, between hosts 10 B/s and 5 s.
DeviceModel device(int ranks_per_host) {
  DeviceModel device = find_device("h100");
  device.within_host = {.bandwidth = 100, .latency = 1};
  device.between_hosts = {.bandwidth = 10, .latency = 5};
  device.ranks_per_host = ranks_per_host;
  return device;
}

}  // namespace

TEST_CASE("tp is innermost: it stays on a host as long as it fits there") {
  const MeshShape shape{.pp = 2, .dp_replicate = 1, .dp_shard = 4, .cp = 2, .tp = 4};
  const MeshLinks links(device(8), shape);
  CHECK_FALSE(links.along(Axis::tp).between_hosts);
  CHECK_FALSE(links.along(Axis::cp).between_hosts);
  CHECK(links.along(Axis::dp_shard).between_hosts);
  CHECK(links.along(Axis::pp).between_hosts);
  CHECK(links.of(Group::stage).between_hosts);
  CHECK(links.of(Group::ep).ranks == 1);
  CHECK(links.world().between_hosts);
  const MeshLinks smaller(device(4), shape);
  CHECK_FALSE(smaller.along(Axis::tp).between_hosts);
  CHECK(smaller.along(Axis::cp).between_hosts);
  // All on one host.
  const MeshLinks alone(device(0), shape);
  CHECK_FALSE(alone.of(Group::stage).between_hosts);
  CHECK_FALSE(alone.world().between_hosts);
}

TEST_CASE("a group that does not fill hosts evenly crosses them") {
  const MeshLinks links(device(8), {.dp_shard = 8, .tp = 3});  // ranks 6, 7 | 8
  CHECK(links.along(Axis::tp).between_hosts);
  CHECK(links.along(Axis::tp).link.bandwidth == 10);
}

TEST_CASE("in sums and gathers the ranks of a group that share a host share its links") {
  // Hosts of 8: four of the eight ranks are on each host, and two of the four along dp_shard.
  const MeshShape shape{.dp_shard = 4, .cp = 2, .tp = 2};
  const MeshLinks links(device(8), shape);
  const GroupLink& sharded = links.of(Group::fsdp);
  CHECK(sharded.link.bandwidth == 10);
  CHECK(sharded.together == 4);
  CHECK(sharded.link.latency == 5);
  // Three quarters go to the other ranks of the block, then each of the four sends a quarter of what the
  // other host needs.
  CHECK(sharded.gather(800) == Approx(600. / 100 + 100. / 10 + 3 * 5));
  CHECK(sharded.seconds(700, 7) == Approx(700. / 10 + 3 * 5));  // from each rank something else
  CHECK(links.along(Axis::dp_shard).together == 2);
  CHECK(links.along(Axis::tp).link.bandwidth == 100);
  // Replicas on hosts of their own.
  const MeshLinks replicas(device(4), {.dp_replicate = 2, .dp_shard = 4});
  CHECK(replicas.of(Group::loss).together == 4);
  // Six ranks on a host are blocks of two.
  const MeshLinks six(device(6), {.dp_shard = 12});
  CHECK(six.of(Group::fsdp).together == 2);
  // Groups of twelve: eight and four, or four and eight.
  const MeshLinks ragged(device(8), {.pp = 2, .dp_shard = 12});
  CHECK(ragged.of(Group::fsdp).together == 4);
  // What passes of tensor-parallel ranks exchange is shared, too.
  const GroupLink tp = MeshLinks(device(4), {.tp = 8}).along(Axis::tp);
  CHECK(tp.shared_seconds(700, 7) == Approx(tp.gather(800)));
  CHECK(tp.gather(800) == Approx(600. / 100 + 100. / 10 + 3 * 5));
}

TEST_CASE("collectives send all but the own part, in as many rounds as a tree has") {
  const GroupLink link{.ranks = 8, .between_hosts = false, .link = {.bandwidth = 100, .latency = 1}};
  CHECK(link.gather(800) == Approx(7 + 3));
  CHECK(link.all_reduce(800) == Approx(2 * (7 + 3)));
  CHECK(link.broadcast() == 3);
  CHECK(link.seconds(200, 7) == Approx(2 + 3));
  const GroupLink alone{.ranks = 1, .between_hosts = false, .link = {.bandwidth = 100, .latency = 1}};
  CHECK(alone.gather(800) == 0);
  CHECK(alone.broadcast() == 0);
}

TEST_CASE("a message between pipeline ranks takes the link between their hosts") {
  const MeshLinks links(device(4), {.pp = 4, .dp_replicate = 2});
  CHECK(links.transfer(0, 1, 100) == Approx(2));
  CHECK(links.transfer(1, 2, 100) == Approx(15));
  CHECK(links.transfer(3, 2, 100) == Approx(2));
}

TEST_CASE("NCCL's thread blocks bound what GPUs exchange within a host") {
  DeviceModel gpu = find_device("h100");
  gpu.within_host.latency = 0;
  const MeshShape shape{.pp = 4, .tp = 2};
  const auto seconds = [&](const std::optional<mesh::GpuBlocks>& blocks) {
    const MeshLinks links(gpu, shape, blocks);
    return std::array{links.transfer(0, 1, 1e9), links.along(Axis::tp).gather(2e9),
                      links.transfer_to_all(0, 1e9)};
  };
  const double link = gpu.within_host.bandwidth, block = gpu.block_bandwidth;
  const auto check = [&](const std::optional<mesh::GpuBlocks>& blocks,
                         const std::array<double, 3>& expected) {
    const std::array<double, 3> found = seconds(blocks);
    for (size_t i = 0; i < found.size(); ++i) CHECK(found[i] == Approx(expected[i]));
  };
  check(std::nullopt, {1e9 / link, 1e9 / link, 3e9 / link});
  // A message has two blocks, and one of three at once has one.
  check(mesh::GpuBlocks{.links = 8, .groups = 1, .of_group = 4},
        {1e9 / (2 * block), 1e9 / (4 * block), 1e9 / block});
  check(mesh::GpuBlocks{.links = 8, .groups = 1, .of_group = 24},
        {1e9 / (2 * block), 1e9 / link, 1e9 / block});
}
