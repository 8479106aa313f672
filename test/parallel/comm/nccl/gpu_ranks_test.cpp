#include "parallel/comm/nccl/gpu_ranks.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

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

// A rank's calls, group by group: the peer and the number of each message between the two.
struct Calls {
  using Messages = std::vector<std::pair<int, int>>;
  std::vector<Messages> sent, received;               // [group]
  std::map<std::pair<int, int>, size_t> group_of_in;  // of a receive
  std::map<std::pair<int, int>, size_t> group_of_out;
  std::map<int, int> in, out;  // [peer] messages so far
  size_t ended = 0;            // groups

  void add(const std::vector<comm::Parcels>& groups) {
    for (const comm::Parcels& group : groups) {
      sent.emplace_back(), received.emplace_back();
      for (const comm::Parcel& parcel : group.out) {
        sent.back().emplace_back(parcel.peer, out[parcel.peer]++);
        group_of_out[sent.back().back()] = sent.size() - 1;
      }
      for (const comm::Parcel& parcel : group.in) {
        received.back().emplace_back(parcel.peer, in[parcel.peer]++);
        group_of_in[received.back().back()] = sent.size() - 1;
      }
    }
  }
};

TEST_CASE("groups of calls have 256 calls at most, and end if each waits for all its messages") {
  const auto [ranks, block] = GENERATE(values<std::pair<int, int>>(
      {{2, 1}, {3, 1}, {130, 1}, {512, 1}, {13, 4}, {11, 8}, {64, 8}, {512, 8}, {300, 2}, {9, 16}}));
  CAPTURE(ranks, block);
  const comm::HostBlocks blocks{.ranks = ranks, .block = block};
  std::vector<at::Tensor> parts;  // every fifth is empty
  for (int rank = 0; rank < ranks; ++rank) parts.push_back(at::empty({rank % 5 == 2 ? 0 : 1}));
  std::vector<Calls> calls(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    comm::BlockGather gather(blocks, rank, [&](int r) { return parts[static_cast<size_t>(r)]; });
    Calls& own = calls[static_cast<size_t>(rank)];
    own.add(comm::groups_of_calls(gather.between, rank, ranks, ranks));
    own.add(comm::groups_of_calls(gather.within, rank, ranks, block - 1));
    std::swap(gather.within.in, gather.within.out);  // as a sum begins
    own.add(comm::groups_of_calls(gather.within, rank, ranks, block - 1));
    for (auto way : {&comm::Parcels::in, &comm::Parcels::out}) {
      std::map<int, std::vector<const void*>> given, moved;  // [peer] in their order
      for (const comm::Parcel& parcel : gather.within.*way) {
        if (parcel.tensor.numel() > 0) given[parcel.peer].push_back(parcel.tensor.const_data_ptr());
      }
      for (const comm::Parcels& group : comm::groups_of_calls(gather.within, rank, ranks, block - 1)) {
        for (const comm::Parcel& parcel : group.*way)
          moved[parcel.peer].push_back(parcel.tensor.const_data_ptr());
      }
      CHECK((given == moved));
    }
    for (size_t group = 0; group < own.sent.size(); ++group) {
      CHECK(own.sent[group].size() + own.received[group].size() <= 256);
      CHECK(own.sent[group].size() + own.received[group].size() > 0);
    }
  }
  // A message is there once both ranks have come to its groups.
  const auto ends = [&](int rank) {
    const Calls& own = calls[static_cast<size_t>(rank)];
    const auto has_come = [&](int peer, auto Calls::*groups, int number) {
      const Calls& other = calls[static_cast<size_t>(peer)];
      const auto group = (other.*groups).find({rank, number});
      return group != (other.*groups).end() && group->second <= other.ended;
    };
    return std::ranges::all_of(own.sent[own.ended],
                               [&](const auto& message) {
                                 return has_come(message.first, &Calls::group_of_in, message.second);
                               }) &&
           std::ranges::all_of(own.received[own.ended], [&](const auto& message) {
             return has_come(message.first, &Calls::group_of_out, message.second);
           });
  };
  for (bool moved = true; std::exchange(moved, false);) {
    for (int rank = 0; rank < ranks; ++rank) {
      Calls& own = calls[static_cast<size_t>(rank)];
      if (own.ended == own.sent.size() || !ends(rank)) continue;
      ++own.ended;
      moved = true;
    }
  }
  for (const Calls& own : calls) CHECK(own.ended == own.sent.size());
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
