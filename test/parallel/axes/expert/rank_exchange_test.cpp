// Experts divided over thread ranks, against one rank with all experts and all tokens.
#include "parallel/axes/expert/rank_exchange.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/kernels/dry_run.h"
#include "parallel/comm/dry/dry_communicator.h"
#include "parallel/comm/hand_over.h"
#include "parallel/comm/split.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "test/core/nn/expert_layer.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using Keep = nn::FeedForward::Keep;
using Gradients = std::map<std::string, Tensor>;

namespace {

struct Outcome {
  Tensor y, dx;
  Gradients gradients;
};

void add_gradients(ExpertLayer& model, Gradients& sums) {
  for (nn::ParameterGroup* group : {&model.group, &model.experts}) {
    for (const nn::Slice* slice : group->slices()) {
      Tensor& sum = sums[slice->spec.name];
      sum = sum.defined() ? sum + slice->grad : slice->grad.clone();
    }
  }
}

Outcome pass(ExpertLayer& model, const Tensor& x, const Tensor& dy, const nn::TokenInfo& tokens,
             std::optional<Keep> recompute) {
  const auto saved = model.layer.activate(x, tokens);
  Outcome outcome{.y = model.layer.project(*saved), .dx = {}, .gradients = {}};
  if (recompute) {
    model.layer.drop(*saved, *recompute);
    model.layer.restore(x, tokens, *saved);
  }
  nn::WeightGradQueue queue(nn::WeightGradQueue::Mode::deferred);
  outcome.dx = model.layer.backward_input(*saved, dy, tokens, queue);
  queue.run();
  return outcome;
}

// Rank r of `ranks` has rows [begins[r], begins[r + 1]); experts are divided over `ep` neighbours.
struct Case {
  int ranks, ep;
  std::vector<int64_t> begins;
  double bias = 0;  // in the choice of expert 5
};

ExpertLayer& biased(ExpertLayer& model, double bias) {
  if (bias != 0) {
    nn::Slice* slice = model.find("router.bias");
    slice->master[5] = bias;
  }
  return model;
}

nn::ExpertsConfig config_of(const Case& c) {
  nn::ExpertsConfig config = small_experts();
  config.balance_bias = c.bias != 0;
  if (c.bias != 0) config.chosen = 1;
  return config;
}

Outcome whole(const Case& c, const Tensor& x, const Tensor& dy) {
  const c10::InferenceMode inference;
  ExpertLayer model(config_of(c));
  Outcome outcome = pass(biased(model, c.bias), x, dy, tokens_of(x.size(0), 30), std::nullopt);
  add_gradients(model, outcome.gradients);
  return outcome;
}

Outcome shared_out(const Case& c, const Tensor& x, const Tensor& dy, std::optional<Keep> recompute) {
  std::vector<Tensor> y(static_cast<size_t>(c.ranks)), dx(y.size());
  std::vector<Gradients> gradients(y.size());
  comm::run_thread_ranks(c.ranks, [&](comm::Communicator& world) {
    at::set_num_threads(1);
    const c10::InferenceMode inference;
    const auto r = static_cast<size_t>(world.rank());
    const auto ep = comm::split(world, [&](int rank) { return rank / c.ep; });
    ExpertLayer model(config_of(c), at::kFloat, expert::make_rank_exchange(ep.get(), &world));
    const auto rows = [&](const Tensor& all) {
      return all.narrow(0, c.begins[r], c.begins[r + 1] - c.begins[r]).contiguous();
    };
    const Outcome own = pass(biased(model, c.bias), rows(x), rows(dy), tokens_of(x.size(0), 30), recompute);
    y[r] = own.y;
    dx[r] = own.dx;
    add_gradients(model, gradients[r]);
  });
  Outcome outcome{.y = test::cat(y), .dx = test::cat(dx), .gradients = {}};
  for (const Gradients& own : gradients) {
    for (const auto& [name, gradient] : own) {
      Tensor& sum = outcome.gradients[name];
      sum = sum.defined() ? sum + gradient : gradient;
    }
  }
  return outcome;
}

}  // namespace

TEST_CASE("experts on several ranks compute what one rank with all of them does", "[expert]") {
  at::set_num_threads(1);
  at::manual_seed(test::seed(3));
  const Case c =
      GENERATE(Case{2, 2, {0, 20, 41}}, Case{4, 4, {0, 11, 11, 30, 41}}, Case{4, 2, {0, 11, 20, 30, 41}},
               Case{2, 1, {0, 20, 41}}, Case{4, 4, {0, 10, 20, 30, 41}, 10.0});
  const Tensor x = at::randn({41, 24}), dy = at::randn({41, 24});
  const Outcome expected = whole(c, x, dy);
  const Outcome actual = shared_out(c, x, dy, std::nullopt);
  CHECK(relative_error(actual.y, expected.y) < 1e-6);
  CHECK(relative_error(actual.dx, expected.dx) < 1e-5);
  REQUIRE(actual.gradients.size() == expected.gradients.size());
  for (const auto& [name, gradient] : expected.gradients) {
    CAPTURE(name);
    CHECK(relative_error(actual.gradients.at(name), gradient) < 1e-5);
  }
  // A second run, and two runs that recompute the forward pass in part or whole.
  for (const std::optional<Keep> recompute :
       {std::optional<Keep>(), std::optional(Keep::products), std::optional(Keep::nothing)}) {
    const Outcome again = shared_out(c, x, dy, recompute);
    CHECK(same_bits(again.y, actual.y));
    CHECK(same_bits(again.dx, actual.dx));
    for (const auto& [name, gradient] : actual.gradients)
      CHECK(same_bits(again.gradients.at(name), gradient));
  }
}

TEST_CASE("rows come ordered by expert, rank and place, and go back where they were", "[expert]") {
  std::mutex mutex;  // Catch's assertions are not for several threads at once
  comm::run_thread_ranks(2, [&](comm::Communicator& world) {
    const auto exchange = expert::make_rank_exchange(&world, nullptr);
    // Rank 0 has rows of experts 0 0 1 3, rank 1 of 0 2 3; a row holds 10 * rank + its number.
    const bool first = world.rank() == 0;
    const Tensor ends = first ? at::tensor({2, 3, 3, 4}, at::kInt) : at::tensor({1, 1, 2, 3}, at::kInt);
    const Tensor rows = at::arange(first ? 4 : 3, at::kFloat).add(10 * world.rank()).view({-1, 1});
    const auto plan = exchange->plan(ends, rows.size(0));
    const Tensor arrived = exchange->dispatch(*plan, rows);
    const Tensor back = exchange->combine(*plan, arrived);
    const std::scoped_lock lock(mutex);
    CHECK(exchange->cut().begin(4, world.rank()) == 2 * world.rank());
    CHECK(at::equal(arrived.view({-1}),
                    first ? at::tensor({0.0F, 1.0F, 10.0F, 2.0F}) : at::tensor({11.0F, 3.0F, 12.0F})));
    CHECK(at::equal(plan->ends, first ? at::tensor({3, 4}, at::kInt) : at::tensor({1, 3}, at::kInt)));
    CHECK(same_bits(back, rows));
  });
}

TEST_CASE("a rank takes turns while rows travel, and on a CPU not while their numbers do", "[expert]") {
  std::mutex mutex;
  comm::run_thread_ranks(2, [&](comm::Communicator& world) {
    const auto exchange = expert::make_rank_exchange(&world, nullptr);
    std::string turns;  // of the other half
    const auto first = [&] {
      const Tensor rows = at::ones({4, 1});
      const auto plan = exchange->plan(at::tensor({2, 4}, at::kInt), 4);
      turns += " dispatch";
      const Tensor arrived = exchange->dispatch(*plan, rows);
      turns += " combine";
      exchange->combine(*plan, arrived);
    };
    const auto second = [] { comm::hand_over(); };
    comm::in_turns(first, second, [&](bool is_second) { turns += is_second ? " second" : ""; });
    const std::scoped_lock lock(mutex);
    CHECK(turns == " dispatch second combine second");
  });
}

TEST_CASE("a dry run gives every expert as many rows and counts what travels", "[expert]") {
  const c10::InferenceMode inference;
  const auto ep = comm::make_dry(kernels::Wire::ep, 0, 4);
  const auto exchange = expert::make_rank_exchange(ep.get(), ep.get());
  const auto meta = at::TensorOptions().device(at::kMeta);
  kernels::DryRun run;
  const auto plan = exchange->plan(at::empty({8}, meta.dtype(at::kInt)), 64);
  CHECK(plan->rows == 64);
  const Tensor rows = at::empty({64, 24}, meta);
  CHECK(exchange->dispatch(*plan, rows).size(0) == 64);
  CHECK(run.cost().on(kernels::Wire::ep).bytes == 48 * 24 * 4);
  CHECK(run.cost().on(kernels::Wire::ep).messages == 3);
}
