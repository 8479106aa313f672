// AdamW over a parameter store, against torch::optim::AdamW.
#include "core/optim/adamw.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <torch/optim/adamw.h>

#include <cmath>

#include "core/base/error.h"
#include "core/optim/grad_norm.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;

namespace {

const config::OptimizerSection kOptions{.betas = {0.9, 0.95}, .eps = 1e-8, .weight_decay = 0.1};

void declare(nn::ParameterStore& store) {
  store.add({{.name = "q.weight", .shape = {5, 7}}, {.name = "k.weight", .shape = {3, 7}}});
  store.add({{.name = "norm.weight", .shape = {7}, .init = nn::Init::ones, .weight_decay = false}});
  store.add({{.name = "bias", .shape = {70}, .init = nn::Init::zeros, .weight_decay = false}});
  store.add({{.name = "out.weight", .shape = {9, 33}}});
}

Tensor gradient(const nn::Parameter& p, int64_t step) {
  return at::sin(at::arange(p.master.numel(), at::kFloat) * 0.7 + static_cast<double>(step))
      .view(p.master.sizes());
}

}  // namespace

TEST_CASE("AdamW follows torch::optim::AdamW, without decay on norms and biases", "[optim]") {
  at::set_num_threads(1);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  nn::ParameterStore store;
  declare(store);
  store.materialise(at::kCPU, type);
  store.initialise(1);

  std::vector<Tensor> oracle;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const nn::Parameter& p : store.parameters()) {
    oracle.push_back(p.master.clone().requires_grad_(true));
    auto options = std::make_unique<torch::optim::AdamWOptions>(1.0);
    options->betas({0.9, 0.95})
        .eps(1e-8)
        .weight_decay(p.spec.name.ends_with("t.weight") || p.spec.name[1] == '.' ? 0.1 : 0);
    groups.emplace_back(std::vector<Tensor>{oracle.back()}, std::move(options));
  }
  CHECK(store.find("norm.weight")->spec.weight_decay == false);
  torch::optim::AdamW reference(groups, torch::optim::AdamWOptions(1.0));
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto& options =
        static_cast<const torch::optim::AdamWOptions&>(reference.param_groups()[i].options());
    REQUIRE((options.weight_decay() != 0) == store.parameters()[i].spec.weight_decay);
  }

  optim::AdamW adamw(store, kOptions);
  for (int64_t step = 0; step < 8; ++step) {
    const double lr = 1e-2 / static_cast<double>(step + 1);
    for (size_t i = 0; i < oracle.size(); ++i) {
      nn::Parameter& p = store.parameters()[i];
      p.grad.copy_(gradient(p, step) * 4);
      oracle[i].mutable_grad() = gradient(p, step) * 2;
      static_cast<torch::optim::AdamWOptions&>(reference.param_groups()[i].options()).lr(lr);
    }
    reference.step();
    const c10::InferenceMode inference;
    adamw.step(lr, 0.5);
    for (size_t i = 0; i < oracle.size(); ++i) {
      const nn::Parameter& p = store.parameters()[i];
      INFO(p.spec.name << " step " << step);
      CHECK((p.master - oracle[i].detach()).abs().max().item<double>() < 5e-7);
      CHECK(same_bits(p.compute, p.master.to(type)));
    }
  }
  CHECK(adamw.step_count() == 8);
  // The gaps between the weights are still zero.
  double in_parameters = 0;
  for (const nn::Parameter& p : store.parameters())
    in_parameters += p.master.abs().sum(at::kDouble).item<double>();
  CHECK(store.flat_master().abs().sum(at::kDouble).item<double>() == Approx(in_parameters).epsilon(1e-12));
}

TEST_CASE("AdamW's state, saved and restored, continues bit for bit", "[optim]") {
  at::set_num_threads(1);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  nn::ParameterStore whole, half;
  declare(whole);
  declare(half);
  whole.materialise(at::kCPU, type);
  half.materialise(at::kCPU, type);
  whole.initialise(1);
  half.initialise(1);
  const auto steps = [](nn::ParameterStore& store, optim::AdamW& adamw, int64_t from, int64_t to) {
    for (int64_t step = from; step < to; ++step) {
      for (nn::Parameter& p : store.parameters()) p.grad.copy_(gradient(p, step));
      adamw.step(1e-2, 1);
    }
  };
  optim::AdamW straight(whole, kOptions);
  steps(whole, straight, 0, 6);
  optim::AdamW first(half, kOptions);
  steps(half, first, 0, 3);
  optim::AdamW second(half, kOptions);
  const std::vector<optim::StateTensor> from = first.state(), to = second.state();
  REQUIRE(from.size() == 2 * half.parameters().size());
  for (size_t i = 0; i < from.size(); ++i) {
    CHECK(from[i].file == to[i].file);
    CHECK(from[i].parameter == to[i].parameter);
    CHECK(from[i].tensor.sizes() == from[i].parameter->master.sizes());
    CHECK(from[i].tensor.is_contiguous());
    to[i].tensor.copy_(from[i].tensor);
  }
  CHECK(from[0].file == "adamw.exp_avg");
  CHECK(from[1].file == "adamw.exp_avg_sq");
  second.set_step(first.step_count());
  steps(half, second, 3, 6);
  CHECK(same_bits(whole.flat_master(), half.flat_master()));
}

TEST_CASE("AdamW refuses what it cannot run on", "[optim]") {
  nn::ParameterStore store;
  declare(store);
  CHECK_THROWS_AS(optim::AdamW(store, kOptions), Error);
  store.materialise(at::kCPU, at::kFloat, /*with_gradients=*/false);
  CHECK_THROWS_AS(optim::AdamW(store, kOptions), Error);
}

TEST_CASE("squared_norms: one per parameter, in order, and not finite where the gradient is not", "[optim]") {
  at::set_num_threads(1);
  nn::ParameterStore store;
  declare(store);
  store.materialise(at::kCPU, at::kBFloat16);
  for (nn::Parameter& p : store.parameters()) p.grad.normal_();
  const std::vector<double> norms = optim::squared_norms(store);
  REQUIRE(norms.size() == 5);
  for (size_t i = 0; i < norms.size(); ++i) {
    CHECK(norms[i] ==
          Approx(store.parameters()[i].grad.to(at::kDouble).pow(2).sum().item<double>()).epsilon(1e-13));
  }
  store.find("bias")->grad[3] = std::nan("");
  CHECK(std::isnan(optim::squared_norms(store)[3]));
  CHECK(std::isfinite(optim::squared_norms(store)[4]));
}

TEST_CASE("AdamW takes a step back bit for bit, NaN or not", "[optim]") {
  at::set_num_threads(1);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const bool poisoned = GENERATE(false, true);
  nn::ParameterStore straight_store, undone_store;
  for (nn::ParameterStore* store : {&straight_store, &undone_store}) {
    store->add({{.name = "large.weight", .shape = {300, 301}}});
    declare(*store);
    store->materialise(at::kCPU, type);
    store->initialise(1);
  }
  optim::AdamW straight(straight_store, kOptions);
  optim::AdamW undone(undone_store, kOptions);
  CHECK_THROWS_AS(undone.undo(), Error);
  undone.keep_previous();
  CHECK_THROWS_AS(undone.undo(), Error);
  const auto set_gradients = [](nn::ParameterStore& store, int64_t step) {
    for (nn::Parameter& p : store.parameters()) p.grad.copy_(gradient(p, step));
  };
  for (int64_t step = 0; step < 4; ++step) {
    set_gradients(undone_store, step);
    if (poisoned) undone_store.parameters()[0].grad.fill_(NAN);
    undone.step(1e-2, 1);
    undone.undo();
    CHECK(undone.step_count() == step);
    CHECK_THROWS_AS(undone.undo(), Error);
    CHECK(same_bits(undone_store.flat_master(), straight_store.flat_master()));
    CHECK(same_bits(undone_store.flat_compute(), straight_store.flat_compute()));

    set_gradients(straight_store, step);
    set_gradients(undone_store, step);
    straight.step(1e-2, 0.5);
    undone.step(1e-2, 0.5);
    CHECK(same_bits(undone_store.flat_master(), straight_store.flat_master()));
    CHECK(same_bits(undone_store.flat_compute(), straight_store.flat_compute()));
    for (size_t i = 0; i < straight.state().size(); ++i) {
      CHECK(same_bits(undone.state()[i].tensor, straight.state()[i].tensor));
    }
  }
}
