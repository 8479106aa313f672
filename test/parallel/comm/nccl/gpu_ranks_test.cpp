#include "parallel/comm/nccl/gpu_ranks.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "test/support/catch.h"

using namespace pptrain;
using comm::GpuRank;
using test::contains_text;

namespace {

GpuRank gpu(char number, std::string_view model = "NVIDIA H100 80GB HBM3", int processors = 132) {
  GpuRank rank{.processors = processors, .nccl = 22809, .nccl_built_with = 22809};
  rank.uuid[0] = number;
  model.copy(rank.model.data(), model.size());
  return rank;
}

}  // namespace

TEST_CASE("GPUs of several kinds are a warning") {
  CHECK(comm::check_gpu_ranks(std::vector{gpu(0), gpu(1)}).empty());
  CHECK_THAT(
      comm::check_gpu_ranks(std::vector{gpu(0), gpu(1, "NVIDIA H100 PCIe", 114), gpu(2)}),
      contains_text("rank 0 has a NVIDIA H100 80GB HBM3 with 132 multiprocessors, rank 1 a NVIDIA H100 "
                    "PCIe with 114"));
  CHECK_FALSE(comm::check_gpu_ranks(std::vector{gpu(0), gpu(1, "NVIDIA H100 80GB HBM3", 130)}).empty());
}

TEST_CASE("two ranks on one GPU are refused, unless both are in a test of that") {
  std::vector ranks{gpu(0), gpu(1), gpu(0)};
  CHECK_THROWS_WITH(comm::check_gpu_ranks(ranks),
                    contains_text("ranks 0 and 2 share one GPU (NVIDIA H100 80GB HBM3)"));
  ranks[0].may_share = true;
  CHECK_THROWS_AS(comm::check_gpu_ranks(ranks), UsageError);
  ranks[2].may_share = true;
  CHECK(comm::check_gpu_ranks(ranks).empty());
}

TEST_CASE("ranks run one NCCL, no older than the one of the build, and none that blocks") {
  std::vector ranks{gpu(0), gpu(1)};
  ranks[1].nccl = 22703;
  CHECK_THROWS_WITH(comm::check_gpu_ranks(ranks),
                    contains_text("rank 0 runs NCCL 2.28.9, rank 1 NCCL 2.27.3"));
  ranks[0].nccl = 22703;
  CHECK_THROWS_WITH(comm::check_gpu_ranks(ranks),
                    contains_text("rank 0 runs NCCL 2.27.3, but pptrain was built with 2.28.9"));
  ranks[0].nccl = ranks[1].nccl = 22803;  // another patch
  CHECK(comm::check_gpu_ranks(ranks).empty());
  ranks[1].blocking = true;
  CHECK_THROWS_WITH(comm::check_gpu_ranks(ranks), contains_text("rank 1 has NCCL_COMM_BLOCKING=1"));
}

TEST_CASE(
    "an exchange of 512 ranks has no more than 256 calls a group, and each send its receive in the round") {
  for (const int ranks : {1, 2, 3, 129, 130, 512}) {
    CAPTURE(ranks);
    std::set<int> distances;
    for (const std::vector<int>& round : comm::exchange_rounds(ranks)) {
      CHECK(2 * round.size() <= 256);
      std::set<std::pair<int, int>> sent, received;
      for (int rank = 0; rank < ranks; ++rank) {
        for (const int distance : round) {
          sent.emplace(rank, (rank + distance) % ranks);
          received.emplace((rank + ranks - distance) % ranks, rank);
        }
      }
      CHECK(sent == received);
      distances.insert(round.begin(), round.end());
    }
    CHECK(std::ssize(distances) == ranks - 1);
    CHECK(distances.count(0) == 0);
  }
}

TEST_CASE("communicators take no more thread blocks than a GPU has for all of them") {
  comm::ThreadBlocks blocks, same = blocks;
  std::optional<std::shared_ptr<void>> first = blocks.take(90, "first");
  const std::shared_ptr<void> second = same.take(6, "second");
  CHECK(blocks.taken() == 96);
  CHECK_THROWS_WITH(
      same.take(1, "the group of ranks 0, 1"),
      contains_text("the group of ranks 0, 1 would be one NCCL communicator too many: with 97"));
  first.reset();
  CHECK(same.taken() == 6);
  CHECK_NOTHROW(same.take(90, "third"));
}
