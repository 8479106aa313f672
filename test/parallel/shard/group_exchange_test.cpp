// Gathering, freeing and summing a sharded and replicated parameter group, against a whole group.
#include "parallel/shard/group_exchange.h"

#include <memory>
#include <mutex>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/split.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "parallel/shard/gradient_sums.h"
#include "test/core/kernels/compare.h"
#include "test/parallel/shard/thread_groups.h"
#include "test/support/catch.h"
#include "test/support/ops.h"
#include "test/support/sum_in_pairs.h"

using namespace pptrain;
using at::Tensor;
using pptrain::test::same_bits;
using pptrain::test::ThreadGroups;

namespace {

// Longer than a block of 1024 elements (kernels::squares_block), and not a multiple of one.
void declare(nn::ParameterGroup& group, nn::Copies copies = nn::Copies::one) {
  group.add({{.name = "q", .shape = {61, 53}}, {.name = "k", .shape = {7, 53}}});
  group.add({{.name = "norm", .shape = {1500}, .role = nn::Role::norm, .copies = copies}});
  group.add({{.name = "o", .shape = {13, 111}}});
}

Tensor gradient(const Tensor& like, int rank) {
  return at::sin(at::arange(like.numel(), at::kFloat) * 0.3 + rank * 1.7);
}

Tensor sum_over(const Tensor& like, const std::vector<int>& ranks) {
  return pptrain::test::sum_in_pairs([&](int i) { return gradient(like, ranks[static_cast<size_t>(i)]); },
                                     static_cast<int>(ranks.size()));
}

}  // namespace

TEST_CASE("a divided group gathers what a whole one holds, and sums what all ranks took") {
  const int parts = GENERATE(1, 2, 3);
  const int replicas = GENERATE(1, 2, 3);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const bool own_gradient = GENERATE(false, true);
  std::mutex mutex;  // Catch's assertions are not for several threads at once
  comm::run_thread_ranks(parts * replicas, [&](comm::Communicator& world) {
    const ThreadGroups groups(world, replicas);
    nn::ParameterGroup whole, group("layers.0");
    declare(whole);
    declare(group);
    whole.materialise(at::kCPU, type);
    whole.initialise(5);
    group.materialise(at::kCPU, type, true, groups.division(own_gradient));
    group.initialise(5);
    shard::GroupExchange exchange(group, groups.ranks());

    const auto unshard = exchange.unshard();
    unshard->wait([] { return "a test"; });
    exchange.reshard();
    const size_t freed = group.buffers()[0]->whole_compute.storage().nbytes();
    const auto again = exchange.unshard();
    again->wait([] { return "a test"; });
    shard::GradientSums sums;
    int finished = 0;
    for (size_t i = 0; i < group.buffers().size(); ++i) {
      group.restore_whole_grad(i);
      group.buffers()[i]->whole_grad.copy_(gradient(group.buffers()[i]->whole_grad, world.rank()));
      sums.begin(exchange, i, [&] { ++finished; });
    }
    sums.finish([] { return "a test"; });

    const std::lock_guard lock(mutex);
    CHECK(unshard->done());
    CHECK(sums.empty());
    CHECK(finished == static_cast<int>(group.buffers().size()));
    CHECK((freed == 0) == (parts > 1));
    std::vector<int> all;
    for (int r = 0; r < world.size(); ++r) all.push_back(r);
    for (size_t i = 0; i < group.buffers().size(); ++i) {
      const int64_t common =
          whole.buffers()[i]->whole_compute.numel();  // a sharded buffer may end in a longer gap
      CHECK(same_bits(group.buffers()[i]->whole_compute.narrow(0, 0, common),
                      whole.buffers()[i]->whole_compute));
      const Tensor own = exchange.own_shard(i);
      CHECK(own.numel() == group.buffers()[i]->grad.numel());
      const Tensor total = sum_over(group.buffers()[i]->whole_grad, all);
      CHECK(same_bits(own, total.narrow(0, groups.shard * own.numel(), own.numel())));
      if (!own_gradient) CHECK(same_bits(own, group.buffers()[i]->grad));
    }
  });
}

TEST_CASE("gradients of copies are summed over the ranks that hold them first") {
  // Two shards, on two tensor-parallel ranks each, which hold copies of the norm.
  std::mutex mutex;
  comm::run_thread_ranks(4, [&](comm::Communicator& world) {
    const int tp = world.rank() % 2;
    const auto column = comm::split(world, [](int rank) { return rank % 2; });
    const auto copies = comm::split(world, [](int rank) { return rank / 2; });
    const ThreadGroups groups(*column, 1);
    nn::ParameterGroup group("layers.0");
    declare(group, nn::Copies::tp);
    group.materialise(at::kCPU, at::kFloat, true, groups.division());
    shard::ShardRanks ranks = groups.ranks();
    ranks.tp_copies = copies.get();
    shard::GroupExchange exchange(group, ranks);
    shard::GradientSums sums;
    for (size_t i = 0; i < group.buffers().size(); ++i) {
      group.buffers()[i]->whole_grad.copy_(gradient(group.buffers()[i]->whole_grad, world.rank()));
      sums.begin(exchange, i, [] {});
    }
    sums.finish([] { return "a test"; });
    const std::lock_guard lock(mutex);
    for (size_t i = 0; i < group.buffers().size(); ++i) {
      const Tensor like = group.buffers()[i]->whole_grad;
      const bool norm = group.buffers()[i]->copies == nn::Copies::tp;
      const Tensor total =
          norm ? sum_over(like, {0, 1}) + sum_over(like, {2, 3}) : sum_over(like, {tp, tp + 2});
      const Tensor own = exchange.own_shard(i);
      CHECK(same_bits(own, total.narrow(0, groups.shard * own.numel(), own.numel())));
    }
  });
}

TEST_CASE("a group that is divided otherwise is refused by name") {
  const auto run = [](bool divided) {
    comm::run_thread_ranks(2, [&](comm::Communicator& world) {
      const auto alone = comm::split(world, [](int rank) { return rank; });
      nn::ParameterGroup group("layers.7");
      declare(group);
      const nn::ShardPlace division{.index = divided ? world.rank() : 0, .count = divided ? 2 : 1};
      group.materialise(at::kCPU, at::kFloat, true, division);
      const shard::GroupExchange exchange(group, {.shards = world, .replicas = *alone, .sum = *alone});
    });
  };
  CHECK_THROWS_WITH(run(false), test::contains_text("layers.7 is shard 0 of 1"));
  CHECK_THROWS_WITH(run(true), test::contains_text("layers.7: rank 0 of 1 is not replica"));
}
