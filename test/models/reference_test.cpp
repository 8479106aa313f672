// Whole models against LibTorch's autograd, in float64 and written plainly.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "models/transformer_stage.h"
#include "test/core/kernels/compare.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;

namespace {

// A decoder as a textbook writes it, over float64 leaves.
class PlainModel {
 public:
  PlainModel(const models::ModelConfig& model, nn::ParameterStore& store) : model_(model) {
    for (const nn::Slice* p : store.slices()) {
      if (!(model.tied && p->spec.name == "head.weight")) weights_[p->spec.name] = leaf(p->master);
    }
    if (model.tied) weights_["head.weight"] = weights_.at("embed.weight");
  }

  Tensor loss(const data::Microbatch& data) {
    Tensor x = weights_.at("embed.weight").index_select(0, data.tokens);
    for (int64_t layer = 0; layer < model_.layers; ++layer) {
      const std::string name = "layers." + std::to_string(layer);
      x = x + attention(norm(x, name + ".attn_norm"), name + ".attn", data);
      const Tensor h = norm(x, name + ".mlp_norm");
      const Tensor gate = linear(h, name + ".mlp.gate");
      x = x + linear(gate * at::sigmoid(gate) * linear(h, name + ".mlp.up"), name + ".mlp.down");
    }
    const Tensor logits = linear(norm(x, "norm"), "head");
    return at::nll_loss(at::log_softmax(logits, -1), data.labels, {}, at::Reduction::Sum, data::ignore_label);
  }

  Tensor grad(const std::string& name) const { return weights_.at(name).grad(); }

 private:
  Tensor linear(const Tensor& x, const std::string& name) const {
    const Tensor y = x.matmul(weights_.at(name + ".weight").t());
    const auto bias = weights_.find(name + ".bias");
    return bias == weights_.end() ? y : y + bias->second;
  }

  Tensor norm(const Tensor& x, const std::string& name) const {
    return test::rms_norm(x, weights_.at(name + ".weight"), model_.norm_eps);
  }

  // Llama 3's stretched frequencies, number by number from the paper's rule as Hugging Face documents it.
  Tensor angles(const Tensor& positions) const {
    std::vector<double> frequencies;
    for (int64_t i = 0; i < model_.head_dim; i += 2) {
      double f = std::pow(model_.rope_theta, -static_cast<double>(i) / static_cast<double>(model_.head_dim));
      if (model_.rope_llama3) {
        const auto& s = *model_.rope_llama3;
        const double turns = static_cast<double>(s.original_max_position_embeddings) * f / (2 * M_PI);
        const double keep =
            std::clamp((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0.0, 1.0);
        f = keep * f + (1 - keep) * f / s.factor;
      }
      frequencies.push_back(f);
    }
    return positions.to(at::kDouble).unsqueeze(-1) * at::tensor(frequencies, at::kDouble);
  }

  // Each document by itself.
  Tensor attention(const Tensor& x, const std::string& name, const data::Microbatch& data) const {
    std::vector<Tensor> out;
    for (int64_t i = 0; i < data.segments.documents(); ++i) {
      const auto own = [&](const Tensor& t) {
        return t.narrow(0, data.segments.first(i), data.segments.length(i));
      };
      out.push_back(attend(own(x), name, own(data.positions)));
    }
    return linear(at::cat(out), name + ".o");
  }

  Tensor attend(const Tensor& x, const std::string& name, const Tensor& positions) const {
    const auto heads = [&](const std::string& part) {
      return linear(x, name + "." + part).view({x.size(0), -1, model_.head_dim});
    };
    const Tensor angle = angles(positions);
    const auto turned = [&](const std::string& part) {
      const Tensor h = heads(part);
      const bool normed = weights_.contains(name + "." + part + "_norm.weight");
      return test::rotate(normed ? norm(h, name + "." + part + "_norm") : h, angle.cos(), angle.sin());
    };
    const int64_t group = model_.heads / model_.kv_heads;
    const Tensor q = turned("q").transpose(0, 1);
    const Tensor k = turned("k").repeat_interleave(group, 1).transpose(0, 1);
    const Tensor v = heads("v").repeat_interleave(group, 1).transpose(0, 1);
    const Tensor future = at::ones({x.size(0), x.size(0)}, at::kBool).triu(1);
    const Tensor scores = q.matmul(k.transpose(1, 2)) / std::sqrt(static_cast<double>(model_.head_dim));
    const Tensor out = at::softmax(scores.masked_fill(future, -INFINITY), -1).matmul(v);
    return out.transpose(0, 1).reshape({x.size(0), -1});
  }

  models::ModelConfig model_;
  std::map<std::string, Tensor> weights_;
};

}  // namespace

TEST_CASE("a model's loss and gradients are autograd's") {
  at::set_num_threads(1);
  const std::string arch = GENERATE(as<std::string>{}, "llama", "qwen3");
  const bool tied = GENERATE(false, true);
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16);
  const auto model = small_model(arch, tied, 2);
  const bool equal = GENERATE(true, false);
  const data::Microbatch data =
      equal ? random_microbatch(model, 2, 9, 5) : random_documents(model, {4, 11, 1, 6}, 5, 1);
  INFO(arch << " tied " << tied << " " << c10::toString(dtype) << " equal " << equal);
  Stages stages = build_stages(model, {1, 1}, dtype);
  pipeline::LossSum sum;
  {
    const c10::InferenceMode inference;
    stages[1]->forward(0, data, stages[0]->forward(0, data, {}));
    stages[0]->backward(0, stages[1]->backward(0, {}));
    sum = stages[1]->take_loss();
  }
  Stages whole = build_stages(model, {2}, at::kFloat);
  PlainModel plain(model, whole[0]->parameters());
  const Tensor loss = plain.loss(data);
  loss.backward();

  const bool exact = dtype == at::kFloat;
  CHECK(sum.tokens == data.targets);
  CHECK(sum.loss == Approx(loss.item<double>()).epsilon(exact ? 1e-6 : 1e-2));
  for (auto& stage : stages) {
    for (const nn::Slice* p : stage->parameters().slices()) {
      INFO(p->spec.name);
      if (tied && p->spec.name == "head.weight") continue;
      Tensor grad = p->grad;
      if (tied && p->spec.name == "embed.weight") grad = grad + stages[1]->head_weight()->grad;
      // A softmax does not see what all keys share, so that most of k's bias gradient cancels and rounding
      // shows.
      const bool cancels = p->spec.name.ends_with(".k.bias");
      CHECK(relative_error(grad, plain.grad(p->spec.name)) < (exact ? 1e-5 : cancels ? 0.25 : 6e-2));
    }
  }
}
