// Gathering, freeing and summing a divided and replicated parameter group, against a group that is whole.
#include "parallel/shard/group_exchange.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros_like.h>

#include <memory>
#include <mutex>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"

using namespace pptrain;
using at::Tensor;
using pptrain::test::same_bits;

namespace {

void declare(nn::ParameterGroup& group) {
  group.add({{.name = "q", .shape = {11, 13}}, {.name = "k", .shape = {7, 13}}});
  group.add({{.name = "norm", .shape = {70}, .role = nn::Role::norm, .init = nn::Init::ones}});
  group.add({{.name = "o", .shape = {13, 11}}});
}

Tensor gradient(const Tensor& like, int rank) {
  return at::sin(at::arange(like.numel(), at::kFloat) * 0.3 + rank * 1.7);
}

}  // namespace

TEST_CASE("a divided group gathers what a whole one holds, and sums what all ranks took") {
  const int parts = GENERATE(1, 2, 3);
  const int replicas = GENERATE(1, 2);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  std::mutex mutex;  // Catch's assertions are not for several threads at once
  comm::run_thread_ranks(parts * replicas, [&](comm::Communicator& world) {
    const int part = world.rank() % parts, replica = world.rank() / parts;
    const auto fsdp = world.split(replica, part);
    const auto same_part = world.split(part, replica);
    nn::ParameterGroup whole, group("layers.0");
    declare(whole);
    declare(group);
    whole.materialise(at::kCPU, type);
    whole.initialise(5);
    group.materialise(at::kCPU, type, true, {.part = part, .parts = parts});
    group.initialise(5);
    shard::GroupExchange exchange(group, *fsdp, *same_part);

    const auto unshard = exchange.unshard();
    unshard->wait([] { return "a test"; });
    exchange.reshard();
    const size_t freed = group.whole()[0].compute.storage().nbytes();
    const auto again = exchange.unshard();
    again->wait([] { return "a test"; });
    for (size_t i = 0; i < group.whole().size(); ++i) {
      group.whole()[i].grad.copy_(gradient(group.whole()[i].grad, world.rank()));
    }
    const auto reduce = exchange.reduce_grad();
    reduce->wait([] { return "a test"; });

    const std::lock_guard lock(mutex);
    CHECK(unshard->done());
    CHECK(reduce->done());
    CHECK((freed == 0) == (parts > 1));
    for (size_t i = 0; i < group.whole().size(); ++i) {
      const int64_t common = whole.whole()[i].compute.numel();  // a divided buffer may end in a longer gap
      CHECK(same_bits(group.whole()[i].compute.narrow(0, 0, common), whole.whole()[i].compute));
      const Tensor like = group.whole()[i].grad;
      // In rank order within fsdp, then over the replicas.
      std::vector<Tensor> sums;
      for (int r = 0; r < replicas; ++r) {
        Tensor sum = gradient(like, r * parts);
        for (int p = 1; p < parts; ++p) sum = sum + gradient(like, r * parts + p);
        sums.push_back(sum);
      }
      Tensor total = sums[0];
      for (int r = 1; r < replicas; ++r) total = total + sums[r];
      const nn::Shard& shard = *group.shards()[i];
      const int64_t size = shard.grad.numel();
      CHECK(same_bits(shard.grad, total.narrow(0, part * size, size)));
    }
  });
}

TEST_CASE("a group that is divided otherwise is refused by name") {
  const auto run = [] {
    comm::run_thread_ranks(2, [](comm::Communicator& world) {
      const auto alone = world.split(world.rank(), 0);
      nn::ParameterGroup group("layers.7");
      declare(group);
      group.materialise(at::kCPU, at::kFloat);
      const shard::GroupExchange exchange(group, world, *alone);
    });
  };
  CHECK_THROWS_WITH(run(), test::contains_text("layers.7"));
}
