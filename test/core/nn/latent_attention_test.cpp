// Multi-head latent attention, against LibTorch's autograd in float64 and the numbers of Hugging Face's
// layer.
#include "core/nn/latent_attention.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIndexing.h>
#include <c10/core/InferenceMode.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/kernels/dry_run.h"
#include "core/nn/rope.h"
#include "test/core/attention/attention_oracle.h"
#include "test/core/kernels/compare.h"
#include "test/core/nn/gradients.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using Mode = nn::WeightGradQueue::Mode;

namespace {

struct LatentOracle {
  Tensor x, y;
  std::vector<std::pair<std::string, Tensor>> weights;
};

// x: [tokens, heads, dim], rotated by the configuration; pairs stay in place.
Tensor rotate_heads(const nn::LatentAttentionConfig& c, const Tensor& x, const Tensor& cos,
                    const Tensor& sin) {
  if (!c.interleaved) return test::rotate(x, cos, sin);
  const Tensor pairs = x.unflatten(-1, {x.size(-1) / 2, 2});
  const Tensor even = pairs.select(-1, 0), odd = pairs.select(-1, 1);
  const Tensor wide_cos = cos.unsqueeze(1), wide_sin = sin.unsqueeze(1);
  return test::stack({even * wide_cos - odd * wide_sin, odd * wide_cos + even * wide_sin}, -1).flatten(-2);
}

LatentOracle plain_layer(nn::ParameterGroup& store, const nn::LatentAttentionConfig& c, const Tensor& x,
                         const nn::TokenInfo& tokens) {
  LatentOracle o{.x = leaf(x), .y = {}, .weights = {}};
  const auto weight = [&](const std::string& name) {
    o.weights.emplace_back(name, leaf(name.find("norm") == std::string::npos ? store.find(name)->compute
                                                                             : store.find(name)->master));
    return o.weights.back().second;
  };
  const auto linear = [&](const std::string& name, const Tensor& of, bool bias) {
    const Tensor y = of.mm(weight("attn." + name + ".weight").t());
    return bias ? y + weight("attn." + name + ".bias") : y;
  };
  const auto norm = [&](const std::string& name, const Tensor& of) {
    return test::rms_norm(of, weight("attn." + name + ".weight"), c.norm_eps);
  };
  const int64_t rows = x.size(0);
  const Tensor q_row = c.q_rank == 0 ? linear("q", o.x, false)
                                     : linear("q_b", norm("q_a_norm", linear("q_a", o.x, c.bias)), false);
  const auto q = q_row.view({rows, c.heads, -1}).split_with_sizes({c.nope_dim, c.rope_dim}, -1);
  const auto narrow = linear("kv_a", o.x, c.bias).split_with_sizes({c.kv_rank, c.rope_dim}, -1);
  const auto kv = linear("kv_b", norm("kv_a_norm", narrow[0]), false)
                      .view({rows, c.heads, -1})
                      .split_with_sizes({c.nope_dim, c.v_dim}, -1);
  const auto places = tokens.positions.to(at::kLong);
  const Tensor cos = tokens.ropes.front().table.cos.index({places}).to(at::kDouble);
  const Tensor sin = tokens.ropes.front().table.sin.index({places}).to(at::kDouble);
  const Tensor key = rotate_heads(c, narrow[1].unsqueeze(1), cos, sin).expand({-1, c.heads, -1});
  const Tensor out =
      masked_attention(test::cat({q[0], rotate_heads(c, q[1], cos, sin)}, -1), test::cat({kv[0], key}, -1),
                       kv[1], tokens.segments, {.scale = c.scale});
  o.y = linear("o", out.reshape({rows, c.heads * c.v_dim}), c.bias);
  return o;
}

const nn::LatentAttentionConfig latent_configs[] = {
    {.hidden = 32, .heads = 4, .kv_rank = 12, .nope_dim = 8, .rope_dim = 4, .v_dim = 6},
    {.hidden = 40,
     .heads = 3,
     .q_rank = 20,
     .kv_rank = 10,
     .nope_dim = 6,
     .rope_dim = 6,
     .v_dim = 8,
     .scale = 0.4},
    {.hidden = 24,
     .heads = 2,
     .q_rank = 10,
     .kv_rank = 8,
     .nope_dim = 5,
     .rope_dim = 8,
     .v_dim = 13,
     .interleaved = false,
     .bias = true},
};

void fill_latent_vectors(nn::ParameterGroup& store) {
  for (nn::Slice* p : store.slices()) {
    if (p->master.dim() == 1) p->master.uniform_(0.5, 1.5);
  }
  store.refresh_compute();
}

}  // namespace

TEST_CASE("LatentAttention: forward, backward_input, backward_weight", "[nn]") {
  at::set_num_threads(1);
  at::manual_seed(test::seed(9));
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  nn::LatentAttentionConfig config = latent_configs[GENERATE(0, 1, 2)];
  config.init_std = config.o_init_std = 0.2;
  const auto starts = GENERATE(std::vector<int32_t>{0, 21, 42}, std::vector<int32_t>{0, 5, 35, 36, 42});
  const nn::TokenInfo tokens{
      .positions = test::cat({at::arange(21, at::kInt), at::arange(21, at::kInt) + 40}),
      .segments = tokens::make_segments(starts, at::kCPU),
      .ropes = {{nn::make_rope_table({.dim = config.rope_dim}, 64, at::kCPU)}}};
  nn::ParameterGroup store;
  nn::LatentAttention layer(store, "attn", config);
  store.materialise(at::kCPU, type);
  store.initialise(5);
  fill_latent_vectors(store);
  const Tensor x = random({42, config.hidden}, type), dy = random({42, config.hidden}, type);
  const LatentOracle oracle = plain_layer(store, config, x, tokens);
  oracle.y.backward(dy.to(at::kDouble));

  const c10::InferenceMode inference;
  const double accuracy = 3 * tolerance(type);  // a chain of two GEMMs more than nn::Attention's
  nn::LatentAttention::Saved saved;
  CHECK(relative_error(layer.forward(x, tokens, saved), oracle.y) < accuracy);
  nn::WeightGradQueue queue(Mode::immediate);
  CHECK(relative_error(layer.backward_input(saved, dy, tokens, queue), oracle.x.grad()) < accuracy);
  for (const Tensor& tensor : saved.tensors()) CHECK_FALSE(tensor.defined());
  CHECK(oracle.weights.size() == store.slices().size());
  for (const auto& [name, weight] : oracle.weights) {
    INFO(name);
    CHECK(relative_error(store.find(name)->grad, weight.grad()) < accuracy);
  }

  SECTION("deferred equals immediate bit for bit") {
    const Tensor immediate = all_gradients(store);
    store.zero_grad();
    nn::WeightGradQueue deferred(Mode::deferred);
    layer.forward(x, tokens, saved);
    layer.backward_input(saved, dy, tokens, deferred);
    CHECK(deferred.size() == (config.q_rank == 0 ? 4 : 5));
    deferred.run();
    CHECK(same_bits(all_gradients(store), immediate));
  }
}

TEST_CASE("LatentAttention on the meta device: shapes, and the operations of its core", "[nn]") {
  const c10::InferenceMode inference;
  const nn::LatentAttentionConfig& config = latent_configs[1];
  nn::ParameterGroup store;
  nn::LatentAttention layer(store, "attn", config);
  const nn::TokenInfo tokens{.positions = at::arange(20, at::TensorOptions(at::kMeta).dtype(at::kInt)),
                             .segments = tokens::equal_segments(1, 20, at::kMeta),
                             .ropes = {{nn::make_rope_table({.dim = config.rope_dim}, 20, at::kMeta)}}};
  const Tensor x = at::empty({20, config.hidden}, at::TensorOptions(at::kMeta));
  const kernels::DryRun run;
  nn::LatentAttention::Saved saved;
  CHECK(layer.forward(x, tokens, saved).sizes() == x.sizes());
  nn::WeightGradQueue queue(Mode::immediate);
  CHECK(layer.backward_input(saved, x, tokens, queue).sizes() == x.sizes());
  CHECK(run.cost().attention_flops == 7 * 2 * (20.0 * 20 / 2) * 3 * 12);
}

TEST_CASE("LatentAttention refuses shapes that do not fit", "[nn]") {
  nn::ParameterGroup store;
  nn::LatentAttentionConfig wide = latent_configs[0], odd = latent_configs[0];
  wide.v_dim = 13;
  odd.rope_dim = 3;
  CHECK_THROWS_WITH(nn::LatentAttention(store, "a", wide), contains_text("values no wider than keys"));
  CHECK_THROWS_WITH(nn::LatentAttention(store, "a", odd), contains_text("4 heads of 8 + 3 elements"));
}

namespace {

// Element i of the parameter with index `number` in these names: 0.3 sin(0.37 i^2 + number), plus 1 for
// norms.
void fill_as_reference(nn::ParameterGroup& store, const std::vector<std::string>& names) {
  for (size_t number = 0; number < names.size(); ++number) {
    const Tensor& master = store.find("attn." + names[number] + ".weight")->master;
    const bool norm = names[number].ends_with("norm");
    float* const data = master.mutable_data_ptr<float>();
    for (int64_t i = 0; i < master.numel(); ++i) {
      const auto place = static_cast<double>(i);
      data[i] = static_cast<float>(0.3 * std::sin(0.37 * place * place + static_cast<double>(number)) +
                                   (norm ? 1 : 0));
    }
  }
  store.refresh_compute();
}

}  // namespace

// transformers.models.deepseek_v3.modeling_deepseek_v3.DeepseekV3Attention in float64, with yarn's
// mscale_all_dim 0.8 and factor 4, and unscaled rotary tables.
TEST_CASE("LatentAttention gives the numbers of Hugging Face's DeepSeek-V3", "[nn]") {
  struct Row {
    int64_t q_rank;
    std::vector<std::string> names;
    std::vector<double> first, last;  // of y's first and last row
    double norm;
  };
  const Row row = GENERATE(Row{0,
                               {"q", "kv_a", "kv_b", "o", "kv_a_norm"},
                               {-0.56030571, -0.862609206, 0.779232134},
                               {-0.053487949, -0.010730506, -0.074526462, 0.094790286},
                               6.851369817783472},
                           Row{12,
                               {"q_a", "q_b", "kv_a", "kv_b", "o", "q_a_norm", "kv_a_norm"},
                               {-0.476777247, 0.00819877, -0.188408437},
                               {0.310511378, 0.188806726, 0.05413505, 0.381100468},
                               5.851652341917759});
  const c10::InferenceMode inference;
  nn::ParameterGroup store;
  const nn::LatentAttention layer(store, "attn",
                                  {.hidden = 24,
                                   .heads = 4,
                                   .q_rank = row.q_rank,
                                   .kv_rank = 10,
                                   .nope_dim = 6,
                                   .rope_dim = 4,
                                   .v_dim = 5,
                                   .scale = 0.3902588031658729});
  store.materialise(at::kCPU, at::kFloat);
  fill_as_reference(store, row.names);
  const Tensor place = at::arange(9 * 24, at::kDouble);
  const Tensor x = at::sin(place * place * 0.011 + place * 0.3).view({9, 24}).to(at::kFloat);
  nn::LatentAttention::Saved saved;
  const Tensor y = layer.forward(x,
                                 {.positions = at::arange(9, at::kInt),
                                  .segments = tokens::equal_segments(1, 9, at::kCPU),
                                  .ropes = {{nn::make_rope_table({.dim = 4}, 9, at::kCPU)}}},
                                 saved);
  CHECK(relative_error(y[0].narrow(0, 0, 3), at::tensor(row.first, at::kDouble)) < 1e-5);
  CHECK(relative_error(y[8].narrow(0, 0, 4), at::tensor(row.last, at::kDouble)) < 1e-5);
  CHECK(relative_error(y.norm().item<double>(), row.norm) < 1e-5);
}
