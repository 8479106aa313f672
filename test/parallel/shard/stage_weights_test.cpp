// A stage's passes over sharded groups: weights are present when used, few groups at a time, and gradients
// are summed once under every policy.
#include "parallel/shard/stage_weights.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/nn/weight_grad_queue.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "parallel/schedule/cost/streamed_groups.h"
#include "test/core/kernels/compare.h"
#include "test/core/nn/gradients.h"
#include "test/parallel/shard/thread_groups.h"
#include "test/support/catch.h"
#include "test/support/ops.h"
#include "test/support/sum_in_pairs.h"

using namespace pptrain;
using at::Tensor;
using nn::Use;
using pptrain::test::same_bits;
using pptrain::test::ThreadGroups;
using pptrain::test::whole_bytes;
using schedule::ActionKind;
using schedule::Gather;
using schedule::Reduce;
using shard::StageWeights;

namespace {

constexpr int blocks = 5;

// An embedding, blocks with a norm each, a small final norm and a head.
std::vector<nn::Weight*> declare(nn::ParameterStore& store) {
  std::vector<nn::Weight*> weights;
  const auto add = [&](const std::string& name, int64_t rows) {
    weights.push_back(&store.add_group(name).add({{.name = name, .shape = {rows, 50}}}));
  };
  add("embed", 130);
  for (int i = 0; i < blocks; ++i) {
    const std::string name = "layers." + std::to_string(i);
    nn::ParameterGroup& group = store.add_group(name);
    weights.push_back(&group.add({{.name = name, .shape = {70, 50}}}));
    weights.push_back(&group.add({{.name = name + ".norm", .shape = {50}, .role = nn::Role::norm}}));
  }
  add("norm", 1);
  add("head", 130);
  return weights;
}

// The groups: embedding 0, blocks 1.., norm, head.
constexpr size_t norm_group = blocks + 1, head_group = blocks + 2;

// A stage that checks the weights it reads, and adds a value for rank and microbatch to gradients.
class FakeStage {
 public:
  FakeStage(StageWeights& access, nn::ParameterStore& store, nn::ParameterStore& whole, int rank)
      : access_(access), store_(store), whole_(whole), rank_(rank) {}

  void forward(int m) {
    with(0, Use::forward, m);
    for (size_t g = 1; g <= blocks; ++g) with(g, Use::forward, m);
    access_.acquire(norm_group, Use::backward);
    read(norm_group);
    with(head_group, Use::backward, m);
    take(norm_group, Use::backward, m);
    access_.release(norm_group, Use::backward);
  }
  void backward(int m, Use use) {
    for (size_t g = blocks; g > 0; --g) with(g, use, m);
    if (use != Use::backward_input) with(0, Use::backward_weight, m);
  }

  static float value(int rank, int m) {
    return 0.1F * static_cast<float>(rank + 1) + 0.37F * static_cast<float>(m);
  }
  int wrong = 0;

 private:
  void with(size_t g, Use use, int m) {
    access_.acquire(g, use);
    if (nn::reads_weights(use)) read(g);
    take(g, use, m);
    access_.release(g, use);
  }
  void read(size_t g) {
    const auto here = store_.groups()[g].buffers();
    const auto all = whole_.groups()[g].buffers();
    for (size_t i = 0; i < all.size(); ++i)
      wrong += !same_bits(here[i]->whole_compute.narrow(0, 0, all[i]->whole_compute.numel()),
                          all[i]->whole_compute);
  }
  void take(size_t g, Use use, int m) {
    for (nn::Buffer* buffer : store_.groups()[g].buffers()) {
      const bool takes = use == Use::backward || (use == Use::backward_input && buffer->with_input) ||
                         (use == Use::backward_weight && !buffer->with_input);
      if (takes) buffer->whole_grad.add_(value(rank_, m));
    }
  }

  StageWeights& access_;
  nn::ParameterStore& store_;
  nn::ParameterStore& whole_;
  int rank_;
};

// A step's gradients, added in the policy's order.
float expected(int ranks, int microbatches, Reduce reduce) {
  const auto over_ranks = [&](const auto& of_rank) { return pptrain::test::sum_in_pairs(of_rank, ranks); };
  if (reduce == Reduce::step) {
    return over_ranks([&](int r) {
      float sum = 0;
      for (int m = 0; m < microbatches; ++m) sum += FakeStage::value(r, m);
      return sum;
    });
  }
  float sum = 0;
  for (int m = 0; m < microbatches; ++m)
    sum += over_ranks([&](int r) { return 0.F + FakeStage::value(r, m); });
  return sum;
}

struct Outcome {
  int wrong = 0;
  int most_whole = 0;
  int64_t bytes_after = 0;
  bool gradients_right = true;
};

// Two steps of four microbatches: F and B in turn, or all F, then all I, then all W.
Outcome run(comm::Communicator& world, int replicas, const schedule::ShardOptions& options,
            bool split_backward) {
  constexpr int microbatches = 4;
  const ThreadGroups groups(world, replicas);
  nn::ParameterStore whole, store;
  declare(whole);
  declare(store);
  whole.materialise(at::kCPU, at::kBFloat16);
  whole.initialise(3);
  const nn::ShardPlace division = groups.division(options.reduce == Reduce::microbatch);
  store.materialise(at::kCPU, at::kBFloat16, true, [&](const auto&) { return division; });
  store.initialise(3);
  shard::GradientSums sums;
  StageWeights weights(store, groups.ranks(), groups.ranks(), options, sums, "stage 0");
  FakeStage stage(weights, store, whole, world.rank());
  Outcome outcome;
  for (int step = 0; step < 2; ++step) {
    store.zero_grad();
    const auto reduces = [&](int m) { return options.reduce == Reduce::microbatch || m + 1 == microbatches; };
    weights.unshard(ActionKind::forward);
    for (int m = 0; m < microbatches; ++m) {
      weights.begin_pass(
          {.kind = ActionKind::forward, .next = split_backward ? ActionKind::forward : ActionKind::backward});
      stage.forward(m);
      if (split_backward) continue;
      weights.begin_pass(
          {.kind = ActionKind::backward, .next = ActionKind::forward, .reduce_follows = reduces(m)});
      stage.backward(m, Use::backward);
      if (reduces(m)) weights.reduce_grad();
    }
    for (int m = 0; split_backward && m < microbatches; ++m) {
      weights.begin_pass({.kind = ActionKind::backward_input, .next = ActionKind::backward_input});
      stage.backward(m, Use::backward_input);
    }
    weights.reshard();
    for (int m = 0; split_backward && m < microbatches; ++m) {
      weights.begin_pass({.kind = ActionKind::backward_weight, .next = {}, .reduce_follows = reduces(m)});
      stage.backward(m, Use::backward_weight);
      if (reduces(m)) weights.reduce_grad();
    }
    weights.finish();
    const int most = weights.take_most_whole_groups();
    if (step > 0) outcome.most_whole = most;  // the first step gathers weights when they are asked for
    for (nn::ParameterGroup& group : store.groups()) {
      for (nn::Buffer* shard : group.buffers()) {
        for (const nn::Slice& slice : shard->slices) {
          const float sum = expected(world.size(), microbatches, options.reduce);
          outcome.gradients_right &= same_bits(slice.grad, at::full_like(slice.grad, sum));
        }
      }
    }
  }
  for (nn::ParameterGroup& group : store.groups()) outcome.bytes_after += whole_bytes(group);
  outcome.wrong = stage.wrong;
  return outcome;
}

}  // namespace

TEST_CASE("weights are whole where they are read, and gradients are summed once, under every policy") {
  const auto [parts, replicas] = GENERATE(std::pair(1, 2), std::pair(2, 1), std::pair(3, 1), std::pair(2, 2));
  const Gather gather = GENERATE(Gather::kept, Gather::streamed);
  const Reduce reduce = GENERATE(Reduce::step, Reduce::microbatch);
  const bool split_backward = GENERATE(false, true);
  CAPTURE(parts, replicas, gather == Gather::streamed, reduce == Reduce::microbatch, split_backward);
  std::mutex mutex;
  comm::run_thread_ranks(
      parts * replicas, [&, parts = parts, replicas = replicas](comm::Communicator& world) {
        const Outcome outcome = run(world, replicas, {.gather = gather, .reduce = reduce}, split_backward);
        const std::lock_guard lock(mutex);
        CHECK(outcome.wrong == 0);
        CHECK(outcome.gradients_right);
        CHECK(outcome.bytes_after == 0);
        if (parts == 1) {
          CHECK(outcome.most_whole == 0);
        } else if (gather == Gather::kept) {
          CHECK(outcome.most_whole == blocks + 3);
        } else {
          CHECK((outcome.most_whole == 2 || outcome.most_whole == 3));
        }
      });
}

// As for layers whose attention is small compared with their experts.
TEST_CASE(
    "streamed weights take the bytes that the rule says, which a small group between large ones adds to") {
  constexpr int layers = 4;
  std::mutex mutex;
  comm::run_thread_ranks(2, [&](comm::Communicator& world) {
    const ThreadGroups groups(world, 1);
    nn::ParameterStore store;
    for (int i = 0; i < layers; ++i) {
      for (const auto& [name, rows] : {std::pair("small", 20), std::pair("large", 2000)}) {
        const std::string name_of_layer = name + std::to_string(i);
        store.add_group(name_of_layer).add({{.name = name_of_layer, .shape = {rows, 50}}});
      }
    }
    store.materialise(at::kCPU, at::kBFloat16, true, [&](const auto&) { return groups.division(); });
    store.initialise(3);
    shard::GradientSums sums;
    StageWeights weights(store, groups.ranks(), groups.ranks(), {.gather = Gather::streamed}, sums,
                         "stage 0");
    int64_t most = 0;
    for (int m = 0; m < 3; ++m) {
      weights.begin_pass({.kind = ActionKind::forward, .next = ActionKind::forward});
      for (size_t g = 0; g < store.groups().size(); ++g) {
        weights.acquire(g, Use::forward);
        int64_t whole = 0;
        for (nn::ParameterGroup& group : store.groups()) whole += whole_bytes(group);
        most = std::max(most, whole);
        weights.release(g, Use::forward);
      }
    }
    weights.finish();
    weights.reshard();
    std::vector<schedule::GroupBytes> sizes;
    for (nn::ParameterGroup& group : store.groups()) {
      const int64_t elements = group.buffers().front()->whole_compute.numel();
      sizes.push_back({elements, 2 * elements});
    }
    const int64_t large = sizes.back().elements;
    const std::lock_guard lock(mutex);
    CHECK(most == schedule::most_streamed_bytes(sizes, large));
    CHECK(most > 2 * 2 * large);
  });
}

TEST_CASE("what no product has written is zero before gradients are summed or read") {
  const Reduce reduce = GENERATE(Reduce::step, Reduce::microbatch);
  const bool taken =
      GENERATE(false, true);  // takes the group's gradients in a pass without GEMMs for one of them
  const int replicas = GENERATE(1, 2);
  CAPTURE(reduce == Reduce::microbatch, taken, replicas);
  std::mutex mutex;
  comm::run_thread_ranks(2, [&](comm::Communicator& world) {
    const ThreadGroups groups(world, replicas);
    nn::ParameterStore store;
    nn::ParameterGroup& group = store.add_group("layers.0");
    nn::Weight& used = group.add({{.name = "used", .shape = {70, 50}}});
    nn::Weight& idle = group.add({{.name = "idle", .shape = {60, 40}}});
    used.grad_by_products = idle.grad_by_products = true;
    const nn::ShardPlace division = groups.division(reduce == Reduce::microbatch);
    store.materialise(at::kCPU, at::kFloat, true, [&](const auto&) { return division; });
    shard::GradientSums sums;
    StageWeights weights(store, groups.ranks(), groups.ranks(), {.gather = Gather::kept, .reduce = reduce},
                         sums, "stage 0");
    const Tensor dy = at::full({1, 70}, static_cast<float>(world.rank() + 1)), x = at::full({1, 50}, 1.0F);
    for (int step = 0; step < 2; ++step) {
      if (!division.own_gradient) group.buffers()[0]->whole_grad.fill_(std::nanf(""));
      store.start_grad();
      weights.unshard(ActionKind::forward);
      weights.begin_pass({.kind = ActionKind::backward, .next = {}, .reduce_follows = true});
      if (taken) {
        weights.acquire(0, Use::backward);
        if (division.own_gradient) idle.grad.fill_(std::nanf(""));
        nn::add_weight_gradient(used, dy, x);
        weights.release(0, Use::backward);
      }
      weights.reduce_grad();
      weights.finish();
      const std::lock_guard lock(mutex);
      for (const nn::Slice* slice : store.slices()) {
        const float sum = taken && slice->spec.name == "used" ? 3 : 0;
        CHECK(slice->grad.eq(sum).all().item<bool>());
      }
    }
  });
}

TEST_CASE("weights that a pass throws away are gathered anew after masters have changed") {
  const Gather gather = GENERATE(Gather::kept, Gather::streamed);
  std::mutex mutex;
  comm::run_thread_ranks(2, [&](comm::Communicator& world) {
    const ThreadGroups groups(world, 1);
    nn::ParameterStore whole, store;
    declare(whole);
    declare(store);
    whole.materialise(at::kCPU, at::kFloat);
    store.materialise(at::kCPU, at::kFloat, true, [&](const auto&) { return groups.division(); });
    shard::GradientSums sums;
    StageWeights weights(store, groups.ranks(), groups.ranks(), {.gather = gather, .reduce = Reduce::step},
                         sums, "stage 0");
    FakeStage stage(weights, store, whole, world.rank());
    for (const uint64_t seed : {1, 2, 3}) {
      weights.settle();  // operations in flight read masters
      whole.initialise(seed);
      store.initialise(seed);
      weights.discard();
      weights.unshard(ActionKind::forward);
      weights.begin_pass({.kind = ActionKind::forward, .next = ActionKind::forward});
      stage.forward(0);
    }
    weights.settle();
    const std::lock_guard lock(mutex);
    CHECK(stage.wrong == 0);
  });
}

// As models::TransformerStage runs B with a second stream: W(i) is enqueued within I(i), and ends after I(i -
// 1).
TEST_CASE("streamed adapters are whole until the weight gradients that read them are there, and no longer") {
  constexpr size_t layers = 6;  // groups 2 i and 2 i + 1: the block's weights, its adapters
  const bool beside = GENERATE(true, false);
  CAPTURE(beside);
  std::mutex mutex;
  comm::run_thread_ranks(2, [&](comm::Communicator& world) {
    const ThreadGroups groups(world, 1);
    nn::ParameterStore store;
    for (size_t i = 0; i < layers; ++i) {
      const std::string name = "layers." + std::to_string(i);
      nn::ParameterGroup& block = store.add_group(name);
      block.put_adapters_in(store.add_group(name + ".lora"));
      block.add({{.name = name, .shape = {2000, 50}}});
      block.adapters()->add({{.name = name + ".lora", .shape = {20, 50}}});
    }
    store.materialise(at::kCPU, at::kBFloat16, true, [&](const auto&) { return groups.division(); });
    store.initialise(3);
    shard::GradientSums sums;
    StageWeights weights(store, groups.ranks(), groups.ranks(), {.gather = Gather::streamed}, sums,
                         "stage 0");
    const auto whole = [&](size_t group) {
      return store.groups()[group].buffers().front()->whole_compute.storage().nbytes() > 0;
    };
    const auto acquire = [&](size_t layer, Use use) {
      for (const size_t group : {2 * layer, 2 * layer + 1}) weights.acquire(group, use);
    };
    const auto release = [&](size_t layer, Use use) {
      for (const size_t group : {2 * layer + 1, 2 * layer}) weights.release(group, use);
    };
    bool read = true;
    size_t adapters_left = 0;
    bool prefetched = true;
    for (int m = 0; m < 3; ++m) {
      weights.begin_pass({.kind = ActionKind::forward, .next = ActionKind::backward_input});
      for (size_t layer = 0; layer < layers; ++layer) {
        acquire(layer, Use::forward);
        if (m > 0 && layer + 1 < layers) prefetched &= whole(2 * layer + 2);
        release(layer, Use::forward);
      }
      weights.begin_pass({.kind = ActionKind::backward_input, .next = ActionKind::forward});
      const auto end_weight_gradients = [&](size_t layer) {
        read &= whole(2 * layer + 1);
        release(layer, Use::backward_weight);
      };
      for (size_t layer = layers; layer-- > 0;) {
        if (beside) acquire(layer, Use::backward_weight);
        acquire(layer, Use::backward_input);
        release(layer, Use::backward_input);
        if (beside && layer + 1 < layers) end_weight_gradients(layer + 1);
      }
      if (beside) end_weight_gradients(0);
      if (!beside) weights.begin_pass({.kind = ActionKind::backward_weight, .next = ActionKind::forward});
      for (size_t layer = layers; !beside && layer-- > 0;) {
        acquire(layer, Use::backward_weight);
        end_weight_gradients(layer);
      }
      adapters_left = 0;
      for (size_t layer = 0; layer < layers; ++layer) adapters_left += whole(2 * layer + 1);
    }
    const int most = weights.take_most_whole_groups();
    weights.finish();
    weights.reshard();
    const std::lock_guard lock(mutex);
    CHECK(read);
    CHECK(prefetched);
    CHECK(most <= schedule::most_streamed_groups);
    // Those that the last pass's order asks for first.
    CHECK(adapters_left <= schedule::most_streamed_groups);
  });
}

TEST_CASE("lists that do not fit are refused by the group's name") {
  const auto run_with = [](const auto& body) {
    comm::run_thread_ranks(2, [&](comm::Communicator& world) {
      const ThreadGroups groups(world, 1);
      nn::ParameterStore store;
      declare(store);
      store.materialise(at::kCPU, at::kFloat, true, [&](const auto&) { return groups.division(); });
      shard::GradientSums sums;
      StageWeights weights(store, groups.ranks(), groups.ranks(), {}, sums, "stage 0");
      body(weights);
    });
  };
  CHECK_THROWS_WITH(run_with([](StageWeights& weights) { weights.acquire(1, Use::forward); }),
                    test::contains_text("layers.0 are not gathered"));
  CHECK_THROWS_WITH(run_with([](StageWeights& weights) {
                      weights.acquire(1, Use::backward_weight);
                      weights.release(1, Use::backward_weight);
                      weights.reduce_grad();
                      weights.acquire(1, Use::backward_weight);
                    }),
                    test::contains_text("layers.0 takes gradients after"));
}
