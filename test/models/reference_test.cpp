// Whole models against LibTorch's autograd, written plainly, in float64 and in bfloat16.
#include <ATen/Parallel.h>
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
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;

namespace {

// A textbook decoder over leaves of float64 or bfloat16. In bfloat16, norms, softmax and loss are computed in
// float32, as in Hugging Face's models, and all else rounds to bfloat16.
class PlainModel {
 public:
  PlainModel(const models::ModelConfig& model, nn::ParameterStore& store, at::ScalarType type)
      : model_(model), type_(type), wide_(type == at::kDouble ? at::kDouble : at::kFloat) {
    for (const nn::Slice* p : store.slices()) {
      if (model.tied && p->spec.name == "head.weight") continue;
      weights_[p->spec.name] = p->master.detach().to(type).clone().requires_grad_(true);
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
    const Tensor logits = linear(norm(x, "norm"), "head").to(wide_);
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
    return test::rms_norm(x.to(wide_), weights_.at(name + ".weight").to(wide_), model_.norm_eps).to(type_);
  }

  // Llama 3's stretched frequencies, number by number from the paper's rule as Hugging Face documents it.
  Tensor angles(const Tensor& positions) const {
    std::vector<double> frequencies;
    for (int64_t i = 0; i < model_.head_dim; i += 2) {
      double f = std::pow(model_.rope_theta, -static_cast<double>(i) / static_cast<double>(model_.head_dim));
      if (model_.rope_scaling.rope_type == config::RopeType::llama3) {
        const auto& s = model_.rope_scaling;
        const double turns = static_cast<double>(s.original_max_position_embeddings) * f / (2 * M_PI);
        const double keep =
            std::clamp((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0.0, 1.0);
        f = keep * f + (1 - keep) * f / s.factor;
      }
      frequencies.push_back(f);
    }
    return positions.to(at::kDouble).unsqueeze(-1) * at::tensor(frequencies, at::kDouble);
  }

  // Each document separately.
  Tensor attention(const Tensor& x, const std::string& name, const data::Microbatch& data) const {
    std::vector<Tensor> out;
    for (int64_t i = 0; i < data.segments.documents(); ++i) {
      const auto own = [&](const Tensor& t) {
        return t.narrow(0, data.segments.first(i), data.segments.length(i));
      };
      out.push_back(attend(own(x), name, own(data.positions)));
    }
    return linear(test::cat(out), name + ".o");
  }

  Tensor attend(const Tensor& x, const std::string& name, const Tensor& positions) const {
    const auto heads = [&](const std::string& part) {
      return linear(x, name + "." + part).view({x.size(0), -1, model_.head_dim});
    };
    const Tensor angle = angles(positions);
    const auto turned = [&](const std::string& part) {
      const Tensor h = heads(part);
      const bool normed = weights_.contains(name + "." + part + "_norm.weight");
      const Tensor straight = normed ? norm(h, name + "." + part + "_norm") : h;
      return test::rotate(straight, angle.cos().to(type_), angle.sin().to(type_));
    };
    const int64_t group = model_.heads / model_.kv_heads;
    const Tensor q = turned("q").transpose(0, 1);
    const Tensor k = turned("k").repeat_interleave(group, 1).transpose(0, 1);
    const Tensor v = heads("v").repeat_interleave(group, 1).transpose(0, 1);
    const Tensor future = at::ones({x.size(0), x.size(0)}, at::kBool).triu(1);
    const Tensor scores = q.matmul(k.transpose(1, 2)) / std::sqrt(static_cast<double>(model_.head_dim));
    const Tensor chances = at::softmax(scores.to(wide_).masked_fill(future, -INFINITY), -1);
    const Tensor out = chances.to(type_).matmul(v);
    return out.transpose(0, 1).reshape({x.size(0), -1});
  }

  models::ModelConfig model_;
  at::ScalarType type_, wide_;
  std::map<std::string, Tensor> weights_;
};

// The results of our model for one microbatch.
struct Ours {
  double loss = 0;
  std::map<std::string, Tensor> gradients;
};

Ours run_ours(const models::ModelConfig& model, const data::Microbatch& data, at::ScalarType dtype) {
  Stages stages = build_stages(model, {1, 1}, dtype);
  Ours ours;
  {
    const c10::InferenceMode inference;
    stages[1]->forward(0, data, stages[0]->forward(0, data, {}));
    stages[0]->backward(0, stages[1]->backward(0, {}));
    ours.loss = stages[1]->take_loss();
  }
  for (auto& stage : stages) {
    for (const nn::Slice* p : stage->parameters().slices()) {
      if (model.tied && p->spec.name == "head.weight") continue;
      const bool shared = model.tied && p->spec.name == "embed.weight";
      ours.gradients[p->spec.name] = shared ? p->grad + stages[1]->head_weight()->grad : p->grad;
    }
  }
  return ours;
}

}  // namespace

TEST_CASE("a model's loss and gradients are autograd's") {
  at::set_num_threads(1);
  const std::string arch = GENERATE(as<std::string>{}, "llama", "qwen3");
  const bool tied = GENERATE(false, true);
  const auto model = small_model(arch, tied, 2);
  const bool equal = GENERATE(true, false);
  const data::Microbatch data =
      equal ? random_microbatch(model, 2, 9, 5) : random_documents(model, {4, 11, 1, 6}, 5, 1);
  INFO(arch << " tied " << tied << " equal " << equal);
  Stages whole = build_stages(model, {2}, at::kFloat);
  PlainModel exact(model, whole[0]->parameters(), at::kDouble);
  const Tensor loss = exact.loss(data);
  loss.backward();

  SECTION("in float32") {
    const Ours ours = run_ours(model, data, at::kFloat);
    CHECK(relative_error(ours.loss, loss.item<double>()) <= 1e-6);
    for (const auto& [name, gradient] : ours.gradients) {
      INFO(name);
      CHECK(relative_error(gradient, exact.grad(name)) < gradient_tolerance);
    }
  }

  // bfloat16's error differs between tensors, so the plain model in bfloat16 gives the expected error of
  // each. Chance allows us four times that, or four times the typical error if the plain model's few numbers
  // are near by chance. A softmax ignores what all keys share, so the gradient of k's bias is only rounding.
  SECTION("in bfloat16, as near as the plain model in bfloat16") {
    const Ours ours = run_ours(model, data, at::kBFloat16);
    PlainModel rounded(model, whole[0]->parameters(), at::kBFloat16);
    const Tensor rounded_loss = rounded.loss(data);
    rounded_loss.backward();
    CHECK(relative_error(ours.loss, loss.item<double>()) <= 2e-3);
    std::map<std::string, double> plain;
    std::vector<double> all;
    for (const auto& [name, gradient] : ours.gradients) {
      if (!name.ends_with(".k.bias"))
        all.push_back(plain[name] = relative_error(rounded.grad(name), exact.grad(name)).value());
    }
    std::ranges::sort(all);
    const double typical = all.at(all.size() / 2);
    for (const auto& [name, error] : plain) {
      INFO(name << ", of the plain model " << error << ", typically " << typical);
      CHECK(relative_error(ours.gradients.at(name), exact.grad(name)) < 4 * std::max(error, typical));
    }
  }
}
