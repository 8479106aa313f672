// Loss and gradients of whole models against LibTorch's autograd, in float64, of a plain reference.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <cmath>

#include "test/core/kernels/compare.h"
#include "test/models/model_support.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;

namespace {

// The model as its papers write it, over leaves that are float64 copies of the stage's weights.
class Reference {
 public:
  Reference(const models::ModelConfig& model, nn::ParameterStore& store) : model_(model) {
    for (const nn::Parameter& parameter : store.parameters()) {
      if (model.tied && parameter.spec.name == "head.weight") continue;
      weights_.emplace(parameter.spec.name, leaf(parameter.master));
    }
  }

  const std::map<std::string, Tensor>& weights() const { return weights_; }

  // Sum of the negative log-likelihoods of one microbatch.
  Tensor loss(const data::Microbatch& data) const {
    Tensor x = at::embedding(weights_.at("embed.weight"), data.tokens);  // [batch, seq, hidden]
    for (int64_t i = 0; i < model_.layers; ++i) {
      const std::string layer = "layers." + std::to_string(i);
      x = x + attention(layer + ".attn", norm(layer + ".attn_norm", x), data.positions);
      x = x + feed_forward(layer + ".mlp", norm(layer + ".mlp_norm", x));
    }
    const Tensor logits = norm("norm", x).matmul(weights_.at(model_.tied ? "embed.weight" : "head.weight").t());
    return at::nll_loss(at::log_softmax(logits.reshape({-1, model_.vocab}), 1), data.labels.reshape({-1}), {},
                        at::Reduction::Sum);
  }

 private:
  Tensor norm(const std::string& name, const Tensor& x) const {
    return test::rms_norm(x, weights_.at(name + ".weight"), model_.norm_eps);
  }

  Tensor linear(const std::string& name, const Tensor& x) const {
    const Tensor y = x.matmul(weights_.at(name + ".weight").t());
    const auto bias = weights_.find(name + ".bias");
    return bias == weights_.end() ? y : y + bias->second;
  }

  Tensor feed_forward(const std::string& name, const Tensor& x) const {
    return linear(name + ".down", at::silu(linear(name + ".gate", x)) * linear(name + ".up", x));
  }

  Tensor heads_of(const std::string& name, const Tensor& x, int64_t heads) const {
    return linear(name, x).view({x.size(0), x.size(1), heads, model_.head_dim});
  }

  Tensor attention(const std::string& name, const Tensor& x, const Tensor& positions) const {
    Tensor q = heads_of(name + ".q", x, model_.heads);
    Tensor k = heads_of(name + ".k", x, model_.kv_heads);
    const Tensor v = heads_of(name + ".v", x, model_.kv_heads);
    if (model_.arch == "qwen3") {
      q = norm(name + ".q_norm", q);
      k = norm(name + ".k_norm", k);
    }
    const Tensor frequency =
        at::pow(model_.rope_theta, at::arange(0, model_.head_dim, 2, at::kDouble) / -static_cast<double>(model_.head_dim));
    const Tensor angle = positions.unsqueeze(-1) * frequency;
    q = rotate(q, angle.cos(), angle.sin());
    k = rotate(k, angle.cos(), angle.sin());
    const int64_t group = model_.heads / model_.kv_heads;
    const Tensor keys = k.repeat_interleave(group, 2).transpose(1, 2);
    const Tensor values = v.repeat_interleave(group, 2).transpose(1, 2);
    const Tensor scores =
        q.transpose(1, 2).matmul(keys.transpose(2, 3)) / std::sqrt(static_cast<double>(model_.head_dim));
    const Tensor future = at::ones({x.size(1), x.size(1)}, at::kBool).triu(1);
    const Tensor mixed = at::softmax(scores.masked_fill(future, -INFINITY), -1).matmul(values).transpose(1, 2);
    return linear(name + ".o", mixed.reshape({x.size(0), x.size(1), model_.heads * model_.head_dim}));
  }

  models::ModelConfig model_;
  std::map<std::string, Tensor> weights_;
};

}  // namespace

TEST_CASE("loss and gradients of a whole model", "[models]") {
  at::set_num_threads(1);
  const auto arch = GENERATE(as<std::string>{}, "llama", "qwen3");
  const auto tied = GENERATE(false, true);
  const auto bias = GENERATE(false, true);
  CAPTURE(arch, tied, bias);
  models::ModelConfig model = small_model(arch, tied);
  model.attention_bias = bias;
  model.mlp_bias = bias && arch == "llama";
  Stages stages = build_stages(model, 1, at::kFloat);
  const auto microbatches = random_microbatches(model, 2);
  const Reference reference(model, stages[0]->parameters());
  const Tensor expected = reference.loss(microbatches[0]) + reference.loss(microbatches[1]);
  expected.backward();

  const c10::InferenceMode inference;
  for (int i = 0; i < 2; ++i) {
    forward(stages, i, microbatches[i]);
    backward(stages, i, Backward::whole);
  }
  CHECK(stages[0]->take_loss().loss == Approx(expected.item<double>()).epsilon(1e-6));
  auto actual = gradients(stages);
  if (tied) {
    actual.at("embed.weight").add_(actual.at("head.weight"));
    actual.erase("head.weight");
  }
  CHECK(actual.size() == reference.weights().size());
  for (const auto& [name, weight] : reference.weights()) {
    INFO(name);
    CHECK(relative_error(actual.at(name), weight.grad()) < 1e-5);
  }
}
