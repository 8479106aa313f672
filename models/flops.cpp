#include "models/flops.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "models/learning.h"
#include "models/transformer_stage.h"

namespace pptrain::models {
namespace {

// Declares the whole model's parameters, without memory, and sums `weight` over their elements. With `active`
// it counts only elements that one token meets: a token goes through a few of each layer's experts.
template <typename Weight>
int64_t sum_of_sizes(const ModelConfig& model, bool active, const Weight& weight) {
  TransformerStage whole(model, whole_model(model));
  int64_t sum = 0;
  for (const nn::ParameterGroup& group : whole.parameters().groups()) {
    int64_t elements = 0;
    for (const nn::ParameterSpec* spec : group.specs()) {
      elements += static_cast<int64_t>(weight(*spec)) *
                  std::accumulate(spec->shape.begin(), spec->shape.end(), int64_t{1}, std::multiplies<>());
    }
    const bool few = active && group.of_experts();
    sum += few ? elements / model.sparse.experts * model.sparse.chosen : elements;
  }
  return sum;
}

// FLOPs of one token in its GEMMs with weights.
double weight_flops(const ModelConfig& model) {
  return static_cast<double>(sum_of_sizes(model, /*active=*/true, [](const nn::ParameterSpec& spec) {
    const bool counts =
        spec.role == nn::Role::matrix || spec.role == nn::Role::head || spec.role == nn::Role::router;
    return counts ? (spec.frozen ? 4 : 6) : 0;
  }));
}

// Twice the keys that a token of a document sees on average.
double seen_keys(int64_t seq, int64_t window) {
  const auto all = static_cast<double>(seq), own = static_cast<double>(window);
  return window == 0 || window >= seq ? all : own * (2 - own / all);
}

// FLOPs of one token in its attention.
double attention_flops(const ModelConfig& model, int64_t seq) {
  double keys = 0;  // twice the average number of keys that a token sees, over all layers
  for (int64_t layer = 0; layer < model.layers; ++layer) keys += seen_keys(seq, model.kind(layer).window);
  const int64_t v_dim = model.kv_rank > 0 ? model.v_dim : model.head_dim;
  return 3 * keys * static_cast<double>(model.heads * (model.head_dim + v_dim));
}

}  // namespace

int64_t parameter_count(const ModelConfig& model, bool learning_only) {
  return sum_of_sizes(model, /*active=*/false, [&](const nn::ParameterSpec& spec) {
    return !(learning_only && spec.frozen) && !(model.tied && spec.role == nn::Role::head) &&
           spec.role != nn::Role::balance;
  });
}

std::string parameters_text(int64_t count) {
  const auto number = static_cast<double>(count);
  return number < 1e9 ? fmt::format("{:.2f} M parameters", number / 1e6)
                      : fmt::format("{:.2f} B parameters", number / 1e9);
}

std::string parameters_text(const ModelConfig& model) {
  const std::string all = parameters_text(parameter_count(model));
  if (!freezes(model)) return all;
  const std::string learning = parameters_text(parameter_count(model, /*learning_only=*/true));
  return fmt::format("{}, of which {} learn", all, learning.substr(0, learning.rfind(' ')));
}

double flops_per_token(const ModelConfig& model, int64_t seq) {
  return weight_flops(model) + attention_flops(model, seq);
}

int64_t attention_length(const ModelConfig& model) {
  return std::clamp(std::llround(weight_flops(model) / attention_flops(model, 1)), 1LL, 1LL << 24);
}

}  // namespace pptrain::models
