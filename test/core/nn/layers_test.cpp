// Linear, RmsNorm, SwiGlu, Embedding and the weight gradient queue, against LibTorch's autograd in float64.
#include <ATen/Parallel.h>
#include <ATen/core/IListRef.h>
#include <c10/core/InferenceMode.h>

#include <optional>

#include "core/nn/feed_forward.h"
#include "core/nn/linear.h"
#include "core/nn/rms_norm.h"
#include "core/nn/vocabulary.h"
#include "core/nn/weight_grad_queue.h"
#include "test/core/kernels/compare.h"
#include "test/core/nn/gradients.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using Mode = nn::WeightGradQueue::Mode;

namespace {

struct Setup {
  Setup() {
    at::set_num_threads(1);
    at::manual_seed(23);
  }
};

void prepare(nn::ParameterGroup& store, at::ScalarType type) {
  store.materialise(at::kCPU, type);
  store.initialise(3);
}

Tensor oracle_weight(nn::ParameterGroup& store, const std::string& name) {
  return leaf(store.find(name)->compute);
}

}  // namespace

TEST_CASE("Linear: forward, backward_input, backward_weight", "[nn]") {
  const Setup setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const bool bias = GENERATE(false, true);
  nn::ParameterGroup store;
  nn::Linear layer(store, 19, {{"a", 8}, {"b", 5}}, bias, 0.3);
  prepare(store, type);
  if (bias) {
    store.find("a.bias")->master.normal_();
    store.find("b.bias")->master.normal_();
    store.refresh_compute();
    CHECK(store.find("a.bias")->spec.role == nn::Role::bias);
  }
  CHECK(store.find("a.weight")->spec.role == nn::Role::matrix);
  CHECK(layer.out_features() == 13);

  const Tensor x = random({11, 19}, type), dy = random({11, 13}, type);
  const Tensor ox = leaf(x), wa = oracle_weight(store, "a.weight"), wb = oracle_weight(store, "b.weight");
  Tensor ba, bb;
  Tensor oy = ox.mm(at::cat({wa, wb}).t());
  if (bias) {
    ba = oracle_weight(store, "a.bias");
    bb = oracle_weight(store, "b.bias");
    oy = oy + at::cat({ba, bb});
  }
  oy.backward(dy.to(at::kDouble));

  const c10::InferenceMode inference;
  CHECK(relative_error(layer.forward(x), oy) < tolerance(type));
  CHECK(relative_error(layer.backward_input(dy), ox.grad()) < tolerance(type));
  layer.backward_weight(x, dy);
  CHECK(relative_error(store.find("a.weight")->grad, wa.grad()) < 2e-6);
  CHECK(relative_error(store.find("b.weight")->grad, wb.grad()) < 2e-6);
  if (bias) {
    CHECK(relative_error(store.find("a.bias")->grad, ba.grad()) < 2e-6);
    CHECK(relative_error(store.find("b.bias")->grad, bb.grad()) < 2e-6);
  }
  layer.backward_weight(x, dy);
  CHECK(relative_error(store.find("b.weight")->grad, wb.grad() * 2) < 2e-6);
}

TEST_CASE("RmsNorm: with and without an addition and a residual gradient", "[nn]") {
  const Setup setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const bool delta = GENERATE(false, true);
  const bool residual = GENERATE(false, true);
  nn::ParameterGroup store;
  nn::RmsNorm layer(store, "norm", 37, 1e-6);
  prepare(store, type);
  store.find("norm.weight")->master.uniform_(0.5, 1.5);
  CHECK(store.find("norm.weight")->spec.role == nn::Role::norm);

  const Tensor x = random({9, 37}, type), d = random({9, 37}, type), dy = random({9, 37}, type),
               dr = random({9, 37}, type);
  const Tensor sum = delta ? (x + d) : x;  // rounded, as the layer's residual stream is
  const Tensor ox = leaf(sum), ow = leaf(store.find("norm.weight")->master);
  const Tensor oy = test::rms_norm(ox, ow, 1e-6);
  oy.backward(dy.to(at::kDouble));
  const Tensor odx = residual ? ox.grad() + dr.to(at::kDouble) : ox.grad();
  const Tensor dr_before = dr.clone();

  const c10::InferenceMode inference;
  nn::RmsNorm::Saved saved;
  const Tensor y = layer.forward(x, delta ? d.clone() : Tensor(), saved);
  CHECK(same_bits(saved.x, sum));
  CHECK(relative_error(y, oy) < tolerance(type));
  const Tensor dx = layer.backward(saved, dy.clone(), residual ? dr : Tensor());
  CHECK(relative_error(dx, odx) < tolerance(type));
  CHECK(relative_error(store.find("norm.weight")->grad, ow.grad()) < 1e-5);
  CHECK(same_bits(dr, dr_before));
}

TEST_CASE("SwiGlu: forward, backward_input, backward_weight", "[nn]") {
  const Setup setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const bool bias = GENERATE(false, true);
  nn::ParameterGroup store;
  nn::SwiGlu layer(store, "mlp", 24, 37, bias, 0.3, 0.2);
  prepare(store, type);
  const Tensor x = random({13, 24}, type), dy = random({13, 24}, type);
  const Tensor ox = leaf(x), gate = oracle_weight(store, "mlp.gate.weight"),
               up = oracle_weight(store, "mlp.up.weight"), down = oracle_weight(store, "mlp.down.weight");
  const Tensor g = ox.mm(gate.t());
  const Tensor oy = (g * at::sigmoid(g) * ox.mm(up.t())).mm(down.t());
  oy.backward(dy.to(at::kDouble));
  CHECK((store.find("mlp.down.bias") != nullptr) == bias);

  const c10::InferenceMode inference;
  nn::SwiGlu::Saved saved;
  CHECK(relative_error(layer.forward(x, {}, saved), oy) < tolerance(type));
  nn::WeightGradQueue queue(Mode::deferred);
  CHECK(relative_error(layer.backward_input(saved, dy, {}, queue), ox.grad()) < 2 * tolerance(type));
  CHECK_FALSE(saved.x.defined());
  CHECK_FALSE(saved.gate_up.defined());
  CHECK_FALSE(saved.act.defined());
  CHECK(queue.size() == 2);
  CHECK(nn::storage_bytes(queue.operands()) == (13 * (37 + 24) + 13 * (24 + 2 * 37)) * x.element_size());
  CHECK(all_gradients(store).abs().sum().item<float>() == 0);
  queue.run();
  CHECK(queue.size() == 0);
  CHECK(relative_error(store.find("mlp.gate.weight")->grad, gate.grad()) < 2 * tolerance(type));
  CHECK(relative_error(store.find("mlp.up.weight")->grad, up.grad()) < 2 * tolerance(type));
  CHECK(relative_error(store.find("mlp.down.weight")->grad, down.grad()) < 2 * tolerance(type));
}

TEST_CASE("Embedding: rows out, gradients in", "[nn]") {
  const Setup setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  nn::ParameterGroup store;
  nn::Embedding layer(store, "embed", 9, 21, 1.0);
  prepare(store, type);
  const Tensor tokens = at::tensor({1, 8, 1, 0, 4, 1}, at::kLong);
  const Tensor dy = random({6, 21}, type);
  const Tensor expected = at::zeros({9, 21}, at::kDouble).index_add(0, tokens, dy.to(at::kDouble));
  const c10::InferenceMode inference;
  CHECK(same_bits(layer.forward(tokens), layer.weight().compute.index_select(0, tokens)));
  layer.backward_weight(tokens, dy);
  CHECK(relative_error(layer.weight().grad, expected) < 1e-6);
}

TEST_CASE("weight gradients have the same bits deferred, and of a record that was dropped and restored",
          "[nn]") {
  const Setup setup;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const Tensor x = random({2, 31, 24}, type), dy = random({2, 31, 24}, type);
  using Keep = nn::FeedForward::Keep;
  const auto gradients = [&](Mode mode, std::optional<Keep> dropped) {
    const c10::InferenceMode inference;
    nn::ParameterGroup store;
    nn::SwiGlu layer(store, "mlp", 24, 40, true, 0.3, 0.2);
    prepare(store, type);
    std::vector<nn::WeightGradQueue> queues(2, nn::WeightGradQueue(mode));
    for (int64_t microbatch = 0; microbatch < 2; ++microbatch) {
      nn::SwiGlu::Saved saved;
      layer.forward(x[microbatch], {}, saved);
      if (dropped) {
        layer.drop(saved, *dropped);
        layer.restore(x[microbatch], {}, saved);
        CHECK_FALSE(saved.act.defined());
      }
      layer.backward_input(saved, dy[microbatch], {}, queues[static_cast<size_t>(microbatch)]);
    }
    for (nn::WeightGradQueue& queue : queues) queue.run();
    return all_gradients(store);
  };
  const Tensor expected = gradients(Mode::immediate, std::nullopt);
  CHECK(same_bits(gradients(Mode::deferred, std::nullopt), expected));
  for (const Mode mode : {Mode::immediate, Mode::deferred}) {
    for (const Keep keep : {Keep::products, Keep::nothing}) CHECK(same_bits(gradients(mode, keep), expected));
  }
}
