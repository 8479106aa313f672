#include "parallel/mesh/gpu_blocks.h"

#include <bit>
#include <utility>

#include "parallel/comm/communicator.h"
#include "test/support/catch.h"

using namespace pptrain;
using mesh::GpuBlocks;

TEST_CASE("a rank's communicators fit on its GPU together, or the job is refused") {
  for (const int pp : {1, 2, 3, 8, 16, 64}) {
    for (const int dp : {1, 4}) {
      for (const int cp : {1, 2, 8}) {
        for (const int tp : {1, 4}) {
          for (const int uses : {0, 1, 2, 4, 7}) {
            const mesh::MeshShape shape{
                .pp = pp, .dp_replicate = dp, .dp_shard = dp, .cp = cp, .tp = tp, .ep = tp};
            const GpuBlocks blocks = mesh::gpu_blocks(shape, {.one_to_all = (uses & 1) != 0 ? 3 : 0,
                                                              .of_ends = (uses & 2) != 0,
                                                              .ring = true,
                                                              .experts = (uses & 4) != 0});
            CAPTURE(pp, dp, cp, tp, uses, blocks.links, blocks.groups, blocks.of_group);
            if (blocks.fit()) CHECK(blocks.all() <= GpuBlocks::most);
            CHECK(blocks.of_group <= GpuBlocks::most_of_group);
            // NCCL would round it up for sends and receives.
            if (blocks.groups > 0 && blocks.fit()) CHECK(std::has_single_bit(unsigned(blocks.of_group)));
            if (uses == 0 && cp < 8) CHECK(blocks.fit());
          }
        }
      }
    }
  }
}

TEST_CASE("links count at both ends, and axes of one rank take nothing") {
  CHECK(mesh::gpu_blocks({}, {}).all() == 0);
  CHECK(mesh::gpu_blocks({.pp = 2}, {}).links == 2 * comm::Communicator::link_blocks);
  CHECK(mesh::gpu_blocks({.pp = 8}, {}).links == 4 * comm::Communicator::link_blocks);
  // To and from seven others.
  CHECK(mesh::gpu_blocks({.pp = 8}, {.one_to_all = 2}).links == 4 * comm::Communicator::link_blocks + 28);
  // fsdp, loss and stage.
  const GpuBlocks sharded = mesh::gpu_blocks({.dp_shard = 4}, {});
  CHECK(sharded.groups == 3);
  CHECK(sharded.of_group == GpuBlocks::most_of_group);
}

TEST_CASE("each exchange in addition to the axes' takes its links or its group") {
  const mesh::MeshShape shape{.pp = 4, .dp_shard = 2, .cp = 4, .tp = 2, .ep = 2};
  const GpuBlocks plain = mesh::gpu_blocks(shape, {});
  CHECK(plain.groups == 5);  // tp, cp, fsdp, loss, stage
  const auto more = [&](const mesh::GpuExchanges& exchanges) {
    const GpuBlocks blocks = mesh::gpu_blocks(shape, exchanges);
    return std::pair(blocks.links - plain.links, blocks.groups - plain.groups);
  };
  CHECK((more({.one_to_all = 1}) == std::pair(6, 0)));
  CHECK((more({.of_ends = true}) == std::pair(2, 0)));
  CHECK((more({.ring = true}) == std::pair(6 * comm::Communicator::link_blocks, 0)));
  CHECK((more({.experts = true}) == std::pair(0, 3)));
  CHECK((more({.kv_copies = true}) == std::pair(0, 1)));
  CHECK((more({.pipeline_gather = true}) == std::pair(0, 1)));
}
