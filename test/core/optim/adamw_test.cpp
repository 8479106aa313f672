// AdamW over a parameter store, against torch::optim::AdamW.
#include "core/optim/optimizer.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <cmath>
#include <vector>

#include "core/base/error.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"
#include "test/support/torch_adamw.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;

namespace {

const config::OptimizerSection kOptions{.betas = {0.9, 0.95}, .eps = 1e-8, .weight_decay = 0.1};

void declare(nn::ParameterGroup& store) {
  store.add({{.name = "q.weight", .shape = {5, 7}}, {.name = "k.weight", .shape = {3, 7}}});
  store.add({{.name = "norm.weight", .shape = {7}, .role = nn::Role::norm}});
  store.add({{.name = "bias", .shape = {70}, .role = nn::Role::bias}});
  store.add({{.name = "out.weight", .shape = {9, 33}}});
}

Tensor gradient(const nn::Slice& p, int64_t step) {
  return at::sin(at::arange(p.master.numel(), at::kFloat) * 0.7 + static_cast<double>(step))
      .view(p.master.sizes());
}

// Masters and compute weights, gaps included.
void check_same(nn::ParameterGroup& a, nn::ParameterGroup& b) {
  for (size_t i = 0; i < a.buffers().size(); ++i) {
    CHECK(same_bits(a.buffers()[i]->master, b.buffers()[i]->master));
    CHECK(same_bits(a.buffers()[i]->whole_compute, b.buffers()[i]->whole_compute));
  }
}

}  // namespace

TEST_CASE("AdamW follows torch::optim::AdamW, without decay on norms and biases", "[optim]") {
  at::set_num_threads(1);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  nn::ParameterGroup store;
  declare(store);
  store.materialise(at::kCPU, type);
  store.initialise(1);

  std::vector<Tensor> oracle;
  std::vector<TorchAdamW::Weight> weights;
  for (const nn::Slice* p : store.slices()) {
    const bool decays = p->spec.name.ends_with("t.weight") || p->spec.name[1] == '.';
    REQUIRE(decays == (p->spec.shape.size() > 1));
    oracle.push_back(p->master.clone().requires_grad_(true));
    weights.push_back({.leaf = oracle.back(), .decay = decays ? 0.1 : 0});
  }
  TorchAdamW reference(weights, {0.9, 0.95});

  const auto optimizer = optim::make_optimizer(kOptions, store.buffers());
  optim::Optimizer& adamw = *optimizer;
  for (int64_t step = 0; step < 8; ++step) {
    const double lr = 1e-2 / static_cast<double>(step + 1);
    for (size_t i = 0; i < oracle.size(); ++i) {
      nn::Slice& p = *store.slices()[i];
      p.grad.copy_(gradient(p, step) * 4);
      oracle[i].mutable_grad() = gradient(p, step) * 2;
    }
    reference.step(lr);
    const c10::InferenceMode inference;
    adamw.step(lr, 0.5);
    for (size_t i = 0; i < oracle.size(); ++i) {
      const nn::Slice& p = *store.slices()[i];
      INFO(p.spec.name << " step " << step);
      CHECK(largest(p.master - oracle[i].detach()) < 5e-7);
      CHECK(p.compute.scalar_type() == (p.spec.role == nn::Role::norm ? at::kFloat : type));
      CHECK(same_bits(p.compute, p.master.to(p.compute.scalar_type())));
    }
  }
  CHECK(adamw.step_count() == 8);
  // The gaps between the weights are still zero.
  double in_parameters = 0;
  for (const nn::Slice* p : store.slices()) in_parameters += p->master.abs().sum(at::kDouble).item<double>();
  double in_buffers = 0;
  for (const nn::Buffer* shard : store.buffers())
    in_buffers += shard->master.abs().sum(at::kDouble).item<double>();
  CHECK(in_buffers == Approx(in_parameters).epsilon(1e-12));
}

TEST_CASE("AdamW's state, saved and restored, continues bit for bit", "[optim]") {
  at::set_num_threads(1);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  nn::ParameterGroup whole, half;
  declare(whole);
  declare(half);
  whole.materialise(at::kCPU, type);
  half.materialise(at::kCPU, type);
  whole.initialise(1);
  half.initialise(1);
  const auto steps = [](nn::ParameterGroup& store, optim::Optimizer& adamw, int64_t from, int64_t to) {
    for (int64_t step = from; step < to; ++step) {
      for (nn::Slice* p : store.slices()) p->grad.copy_(gradient(*p, step));
      adamw.step(1e-2, 1);
    }
  };
  steps(whole, *optim::make_optimizer(kOptions, whole.buffers()), 0, 6);
  const auto first = optim::make_optimizer(kOptions, half.buffers());
  steps(half, *first, 0, 3);
  const auto second = optim::make_optimizer(kOptions, half.buffers());
  const std::vector<optim::StateTensor> from = first->state(), to = second->state();
  REQUIRE(from.size() == 2 * half.slices().size());
  for (size_t i = 0; i < from.size(); ++i) {
    CHECK(from[i].file == to[i].file);
    CHECK(from[i].slice == to[i].slice);
    CHECK(from[i].tensor.sizes() == from[i].slice->master.sizes());
    CHECK(from[i].tensor.is_contiguous());
    to[i].tensor.copy_(from[i].tensor);
  }
  CHECK(from[0].file == "adamw.exp_avg");
  CHECK(from[1].file == "adamw.exp_avg_sq");
  second->set_step(first->step_count());
  steps(half, *second, 3, 6);
  check_same(whole, half);
}

TEST_CASE("AdamW refuses what it cannot run on", "[optim]") {
  nn::ParameterGroup store;
  declare(store);
  store.materialise(at::kCPU, at::kFloat, /*with_gradients=*/false);
  CHECK_THROWS_AS(optim::make_optimizer(kOptions, store.buffers()), Error);
}

TEST_CASE("the sum of squares of gradients, whole or in parts, has the same bits", "[optim]") {
  at::set_num_threads(1);
  nn::ParameterGroup whole;
  const auto declare_large = [](nn::ParameterGroup& group) {
    group.add({{.name = "large.weight", .shape = {300, 301}}});
    declare(group);
  };
  declare_large(whole);
  whole.materialise(at::kCPU, at::kBFloat16);
  for (nn::Slice* p : whole.slices()) p->grad.normal_();
  double sum = 0;
  for (const nn::Slice* p : whole.slices()) sum += p->grad.to(at::kDouble).pow(2).sum().item<double>();
  const double reference = optim::sum_of_squares(whole.slices()).rounded();
  CHECK(reference == Approx(sum).epsilon(1e-13));
  for (const int parts : {2, 3, 7}) {
    kernels::ExactSum all;
    for (int part = 0; part < parts; ++part) {
      nn::ParameterGroup group;
      declare_large(group);
      group.materialise(at::kCPU, at::kBFloat16, true, {.index = part, .count = parts});
      for (nn::Slice* p : group.slices()) {
        const Tensor grad = whole.find(p->spec.name)->grad.view({-1});
        p->grad.view({-1}).copy_(grad.narrow(0, p->shape.begin, p->shape.numel()));
      }
      all.add(optim::sum_of_squares(group.slices()));
    }
    CHECK(all.rounded() == reference);
  }
  whole.find("bias")->grad[3] = std::nan("");
  CHECK(std::isnan(optim::sum_of_squares(whole.slices()).rounded()));
  CHECK(optim::sum_of_squares({}).rounded() == 0);
}

TEST_CASE("every optimizer takes a step back bit for bit, NaN or not", "[optim]") {
  at::set_num_threads(1);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const bool poisoned = GENERATE(false, true);
  nn::ParameterGroup straight_store, undone_store;
  for (nn::ParameterGroup* store : {&straight_store, &undone_store}) {
    store->add({{.name = "large.weight", .shape = {300, 301}}});
    declare(*store);
    store->materialise(at::kCPU, type);
    store->initialise(1);
  }
  config::OptimizerSection options = kOptions;
  options.name = GENERATE("adamw", "lion", "muon");
  options.ema_decay = 0.9;
  options.state_dtype = GENERATE(config::Dtype::fp32, config::Dtype::bf16);
  const auto made = optim::make_optimizer(options, straight_store.buffers());
  const auto other = optim::make_optimizer(options, undone_store.buffers());
  optim::Optimizer &straight = *made, &undone = *other;
  CHECK_THROWS_AS(undone.undo(), Error);
  undone.keep_previous();
  CHECK_THROWS_AS(undone.undo(), Error);
  const auto set_gradients = [](nn::ParameterGroup& store, int64_t step) {
    for (nn::Slice* p : store.slices()) p->grad.copy_(gradient(*p, step));
  };
  for (int64_t step = 0; step < 4; ++step) {
    set_gradients(undone_store, step);
    if (poisoned) undone_store.slices()[0]->grad.fill_(NAN);
    undone.step(1e-2, 1);
    undone.undo();
    CHECK(undone.step_count() == step);
    CHECK_THROWS_AS(undone.undo(), Error);
    check_same(undone_store, straight_store);

    set_gradients(straight_store, step);
    set_gradients(undone_store, step);
    straight.step(1e-2, 0.5);
    undone.step(1e-2, 0.5);
    check_same(undone_store, straight_store);
    for (size_t i = 0; i < straight.state().size(); ++i) {
      CHECK(same_bits(undone.state()[i].tensor, straight.state()[i].tensor));
    }
  }
}

TEST_CASE("AdamW and Lion on the parts of a divided group give the bits of the whole group", "[optim]") {
  at::set_num_threads(1);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const int parts = GENERATE(2, 3);
  const auto declare_large = [](nn::ParameterGroup& group) {
    group.add({{.name = "large.weight", .shape = {50, 61}}});
    declare(group);
  };
  nn::ParameterGroup whole;
  declare_large(whole);
  whole.materialise(at::kCPU, type);
  whole.initialise(1);
  config::OptimizerSection options = kOptions;
  options.name = GENERATE("adamw", "lion");
  const auto reference = optim::make_optimizer(options, whole.buffers());
  for (nn::Slice* p : whole.slices()) p->grad.copy_(gradient(*p, 1));
  reference->step(1e-2, 0.5);
  for (int part = 0; part < parts; ++part) {
    nn::ParameterGroup group;
    declare_large(group);
    group.materialise(at::kCPU, type, true, {.index = part, .count = parts});
    group.initialise(1);
    const auto optimizer = optim::make_optimizer(options, group.buffers());
    const auto range = [](const nn::Slice& slice, const Tensor& t) {
      return t.reshape({-1}).narrow(0, slice.shape.begin, slice.shape.numel());
    };
    for (nn::Slice* p : group.slices()) p->grad.view({-1}).copy_(range(*p, whole.find(p->spec.name)->grad));
    optimizer->step(1e-2, 0.5);
    for (const nn::Slice* p : group.slices()) {
      const nn::Slice& all = *whole.find(p->spec.name);
      CHECK(same_bits(p->master.reshape({-1}), range(*p, all.master)));
      CHECK(same_bits(p->compute.reshape({-1}), range(*p, all.compute)));
    }
  }
}

namespace {

// Plain gradient descent with one state value that counts steps. It does not keep the values it overwrites,
// so undo() must restore them.
class Descent final : public optim::Update {
 public:
  std::vector<std::string> state_files() const override { return {"descent.count"}; }
  void step(std::span<optim::Run> runs, double lr, double grad_scale, int64_t /*step*/) override {
    for (optim::Run& run : runs) {
      CHECK_FALSE(run.previous.has_value());
      run.now.master.sub_(run.grad, lr * grad_scale);
      run.now.state[0].add_(1);
      if (run.compute) run.compute->copy_(run.now.master);
    }
  }
};

}  // namespace

TEST_CASE("undo takes back a step of any optimizer", "[optim]") {
  nn::ParameterGroup group;
  declare(group);
  group.materialise(at::kCPU, at::kBFloat16);
  group.initialise(1);
  for (nn::Slice* p : group.slices()) p->grad.copy_(gradient(*p, 0));
  std::vector<std::unique_ptr<optim::Update>> updates;
  updates.push_back(std::make_unique<Descent>());
  optim::Optimizer descent(group.buffers(), std::move(updates),
                           [](const nn::ParameterSpec&) { return optim::Rule{}; });
  descent.keep_previous();
  descent.step(1e-2, 1);
  const Tensor master = group.find("out.weight")->master.clone();
  const Tensor compute = group.find("out.weight")->compute.clone();
  descent.step(1e-2, 1);
  CHECK_FALSE(same_bits(group.find("out.weight")->master, master));
  descent.undo();
  CHECK(same_bits(group.find("out.weight")->master, master));
  CHECK(same_bits(group.find("out.weight")->compute, compute));
  CHECK(descent.state().front().tensor.eq(1).all().item<bool>());
  CHECK(descent.step_count() == 1);
}

TEST_CASE("an optimizer that is reset steps as a new one, and has nothing to take back", "[optim]") {
  at::set_num_threads(1);
  config::OptimizerSection options = kOptions;
  options.name = GENERATE("adamw", "lion", "muon");
  options.ema_decay = 0.9;
  nn::ParameterGroup used, fresh;
  for (nn::ParameterGroup* store : {&used, &fresh}) {
    declare(*store);
    store->materialise(at::kCPU, at::kFloat);
    store->initialise(1);
    for (nn::Slice* p : store->slices()) p->grad.copy_(gradient(*p, 1));
  }
  const auto again = optim::make_optimizer(options, used.buffers());
  const auto first = optim::make_optimizer(options, fresh.buffers());
  again->keep_previous();
  for (int step = 0; step < 3; ++step) again->step(1e-2, 1);
  used.initialise(1);
  again->reset();
  CHECK(again->step_count() == 0);
  CHECK_THROWS_AS(again->undo(), Error);
  first->start_average();
  again->step(1e-2, 1);
  first->step(1e-2, 1);
  check_same(used, fresh);
  const std::vector<optim::StateTensor> a = again->state(), b = first->state();
  for (size_t i = 0; i < a.size(); ++i) CHECK(same_bits(a[i].tensor, b[i].tensor));
}
