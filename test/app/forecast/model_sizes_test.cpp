// Sizes and costs, against published figures and against sums made by hand.
#include <cmath>
#include <functional>
#include <string>

#include "app/forecast/footprint.h"
#include "app/resolve/load_plan.h"
#include "core/base/error.h"
#include "models/flops.h"
#include "models/model_config.h"
#include "models/registry.h"
#include "test/app/family_jobs.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;

namespace {

// Llama 3.1 8B's config.json.
config::ModelSection llama_8b() {
  config::ModelSection section;
  section.arch = "llama";
  section.hidden_size = 4096;
  section.intermediate_size = 14336;
  section.num_hidden_layers = 32;
  section.num_attention_heads = 32;
  section.num_key_value_heads = 8;
  section.vocab_size = 128256;
  section.max_position_embeddings = 131072;
  section.rope_theta = 500000;
  section.rope_scaling = {.rope_type = config::RopeType::llama3, .factor = 8};
  return section;
}

// Qwen3-0.6B's config.json.
config::ModelSection qwen3_06b() {
  config::ModelSection section;
  section.arch = "qwen3";
  section.hidden_size = 1024;
  section.intermediate_size = 3072;
  section.num_hidden_layers = 28;
  section.num_attention_heads = 16;
  section.num_key_value_heads = 8;
  section.head_dim = 128;
  section.vocab_size = 151936;
  section.tie_word_embeddings = true;
  return section;
}

// Qwen3-30B-A3B's config.json.
config::ModelSection qwen3_30b_a3b() {
  config::ModelSection section;
  section.arch = "qwen3_moe";
  section.hidden_size = 2048;
  section.num_hidden_layers = 48;
  section.num_attention_heads = 32;
  section.num_key_value_heads = 4;
  section.head_dim = 128;
  section.vocab_size = 151936;
  section.num_experts = 128;
  section.num_experts_per_tok = 8;
  section.moe_intermediate_size = 768;
  section.norm_topk_prob = true;
  return section;
}

// Mixtral-8x7B's config.json.
config::ModelSection mixtral_8x7b() {
  config::ModelSection section;
  section.arch = "mixtral";
  section.hidden_size = 4096;
  section.intermediate_size = 14336;
  section.num_hidden_layers = 32;
  section.num_attention_heads = 32;
  section.num_key_value_heads = 8;
  section.vocab_size = 32000;
  section.num_experts = 8;
  section.num_experts_per_tok = 2;
  return section;
}

std::string error_of(config::ModelSection section, const std::function<void(config::ModelSection&)>& change,
                     int64_t seq_len = 4096) {
  change(section);
  try {
    models::make_model_config(section, seq_len);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

int64_t parameters(const models::ModelConfig& model) {
  return models::TransformerStage(
             model, {.end_layer = static_cast<int>(model.layers), .embedding = true, .head = true})
      .parameters()
      .parameter_count();
}

}  // namespace

TEST_CASE("defaults follow from the other sizes") {
  const auto model = models::make_model_config(llama_8b(), 4096);
  CHECK(model.head_dim == 128);
  CHECK(model.max_seq == 4096);
  CHECK(model.rope_scaling.rope_type == config::RopeType::llama3);
  CHECK(model.rope_scaling.factor == 8);
  CHECK(model.rope_scaling.original_max_position_embeddings == 8192);
  auto section = llama_8b();
  section.num_key_value_heads = 0;
  section.rope_scaling = {.rope_type = config::RopeType::linear, .factor = 2};
  const auto other = models::make_model_config(section, 8);
  CHECK(other.kv_heads == 32);
  CHECK(other.rope_scaling.rope_type == config::RopeType::linear);
  CHECK(other.rope_scaling.factor == 2);
}

TEST_CASE("wrong sizes are errors that name the key") {
  const auto ok = [](config::ModelSection&) {};
  CHECK(error_of(llama_8b(), ok) == "no error");
  const auto check = [](const config::ModelSection& section, const char* start, const auto& change) {
    CHECK_THAT(error_of(section, change), Catch::Matchers::StartsWith(start));
  };
  check(llama_8b(), R"(model.arch: "lama" is not known; valid are "llama", "qwen3")",
        [](auto& s) { s.arch = "lama"; });
  check(llama_8b(), "model.vocab_size: is required", [](auto& s) { s.vocab_size = 0; });
  check(llama_8b(), "model.num_attention_heads: is required", [](auto& s) { s.num_attention_heads = 0; });
  check(llama_8b(), "model.hidden_size: hidden_size = 4096 is not divisible by num_attention_heads = 33",
        [](auto& s) { s.num_attention_heads = 33, s.num_key_value_heads = 33; });
  check(llama_8b(), "model.num_key_value_heads: num_attention_heads = 32 is not divisible",
        [](auto& s) { s.num_key_value_heads = 5; });
  check(llama_8b(), "model.head_dim: head_dim = 7 is odd", [](auto& s) { s.head_dim = 7; });
  check(qwen3_06b(), "model.mlp_bias: qwen3", [](auto& s) { s.mlp_bias = true; });
  CHECK_THAT(error_of(llama_8b(), ok, 131073),
             Catch::Matchers::StartsWith("train.seq_len: seq_len = 131073 is longer"));
  CHECK_THAT(error_of(llama_8b(), ok, 0), Catch::Matchers::StartsWith("train.seq_len: 0"));
}

TEST_CASE("parameter counts are the published ones") {
  CHECK(parameters(models::make_model_config(llama_8b(), 8)) == 8030261248);
  CHECK(models::parameter_count(models::make_model_config(llama_8b(), 8)) == 8030261248);
  CHECK(models::parameter_count(models::make_model_config(qwen3_06b(), 8)) == 596049920);
  CHECK(models::parameter_count(models::make_model_config(qwen3_30b_a3b(), 8)) == 30532122624);
  CHECK(models::parameter_count(models::make_model_config(mixtral_8x7b(), 8)) == 46702792704);
  // 596,049,920, and the tied head's copy.
  CHECK(parameters(models::make_model_config(qwen3_06b(), 8)) == 596049920 + 151936 * 1024);
}

TEST_CASE("stages share a model's parameters out") {
  for (const std::string arch : {"llama", "qwen3"}) {
    const auto model = small_model(arch, false, 5);
    const auto assignment = pipeline::compute_layer_assignment(5, 3);
    const app::Footprints fp32(model, {.length = 4, .bfloat16 = false});
    const app::Footprints bf16(model, {.length = 4, .bfloat16 = true});
    const int64_t norms =
        5 * (2 * model.hidden + (arch == "qwen3" ? 2 * model.head_dim : 0)) + model.hidden;  // float32 alone
    int64_t sum = 0, rounded = 0;
    for (int i = 0; i < 3; ++i) {
      const auto slice = models::stage_slice(assignment, i);
      const app::StageFootprint& a = fp32.of(slice);
      const app::StageFootprint& b = bf16.of(slice);
      sum += a.parameters;
      CHECK(a.weight_bytes == 4 * a.parameters);
      CHECK(a.gradient_bytes == 4 * a.parameters);
      CHECK(b.gradient_bytes == a.gradient_bytes);
      rounded += b.weight_bytes - a.weight_bytes;
    }
    CHECK(sum == parameters(model));
    CHECK(rounded == 2 * (sum - norms));
  }
}

TEST_CASE("FLOPs per token") {
  // Llama 3.1 8B: all parameters except the embedding and the 65 norms of 4096 are in GEMMs.
  const auto model = models::make_model_config(llama_8b(), 8);
  const double matmul = 8030261248.0 - 128256.0 * 4096 - 65 * 4096;
  CHECK(models::flops_per_token(model, 4096) == 6 * matmul + 6.0 * 32 * 4096 * 4096);

  // In a sparse layer a token passes attention, the router and 8 experts.
  const double attention = 2.0 * 2048 * 4096 + 2.0 * 2048 * 512, experts = 8 * 3.0 * 2048 * 768;
  const double met = 48 * (attention + 128 * 2048 + experts) + 151936.0 * 2048;
  CHECK(models::flops_per_token(models::make_model_config(qwen3_30b_a3b(), 8), 4096) ==
        6 * met + 6.0 * 48 * 4096 * 4096);
}

TEST_CASE("the attention of a document of a family's attention length costs what its GEMMs do") {
  for (const models::Architecture* family : models::architectures) {
    CAPTURE(family->name);
    const models::ModelConfig model =
        app::parse_plan(test::family_job_text(), "small.toml", test::family_settings(*family)).model;
    const double gemms = models::flops_per_token(model, 0);
    CHECK(models::attention_length(model) ==
          std::llround(gemms / (models::flops_per_token(model, 1) - gemms)));
  }
}

TEST_CASE("which layers are sparse") {
  config::ModelSection section = qwen3_30b_a3b();
  section.decoder_sparse_step = 2;
  section.mlp_only_layers = {3, 8};
  CHECK(error_of(section, [](auto&) {}) ==
        "model.intermediate_size: is required where there is no model.hf_dir: give an integer above 0");
  section.intermediate_size = 100;
  const models::SparseLayers sparse = models::make_model_config(section, 8).sparse;
  std::string kinds;
  for (int64_t layer = 0; layer < 10; ++layer) kinds += sparse.contains(layer) ? 's' : 'd';
  CHECK(kinds == "dsdddsdsds");
}

TEST_CASE("the stages' F, I and W sum to the model's FLOPs") {
  const std::string arch = GENERATE(as<std::string>{}, "qwen3", "qwen3_moe");
  const auto model = small_model(arch, true, 5);
  const auto assignment = pipeline::compute_layer_assignment(5, 3);
  const app::Footprints footprints(model, {.documents = 2, .length = 16});
  kernels::Cost sum;
  for (int i = 0; i < 3; ++i) {
    const app::StageFootprint& f = footprints.of(models::stage_slice(assignment, i));
    CHECK(f.passes.backward_weight.cost.attention_flops == 0);
    CHECK(f.passes.backward.cost == f.passes.backward_input.cost + f.passes.backward_weight.cost);
    sum += f.passes.forward.cost + f.passes.backward.cost;
  }
  // Attention has two GEMMs forward and five backward; six are useful, since the scores are computed twice.
  CHECK(sum.product_flops + sum.attention_flops * 6 / 7 == Approx(32 * models::flops_per_token(model, 16)));
  // The head's three GEMMs are in the last stage's F, so that F costs more than its layers.
  const auto products = [&](bool head) {
    return footprints.of({.end_layer = 1, .head = head}).passes.forward.cost.product_flops;
  };
  CHECK(products(true) - products(false) == 32 * 6.0 * 61 * 40);
}

TEST_CASE("a layer of Llama 3 8B keeps 139 kB of a token, or 94 kB where it recomputes what is cheap") {
  const auto model = models::make_model_config(llama_8b(), 8192);
  const auto kept = [&](config::Recompute recompute) {
    const auto of = [&](int layers) {
      return app::dry_run(model, {.end_layer = layers},
                          {.documents = 1, .length = 64, .recompute = recompute})
          .activation;
    };
    return (of(2) - of(1)) / 64;
  };
  const int64_t x = 2 * 4096, qkv = 2 * (4096 + 2 * 1024), gate_up = 2 * 2 * 14336, act = 2 * 14336;
  const int64_t logsumexp = 32 * 4, rstd = 4;
  CHECK(kept(config::Recompute::none) == 5 * x + qkv + gate_up + act + logsumexp + 2 * rstd);
  CHECK(kept(config::Recompute::cheap) == 3 * x + qkv + gate_up + logsumexp);
  CHECK(kept(config::Recompute::none) / 1000 == 139);
  CHECK(kept(config::Recompute::cheap) / 1000 == 94);
}

TEST_CASE("what is recomputed is added to I") {
  const auto model = small_model("llama", false, 2);
  const models::StageSlice body{.end_layer = 2};
  const auto cost = [&](config::Recompute policy) {
    return app::dry_run(model, body, {.documents = 2, .length = 16, .recompute = policy});
  };
  const auto none = cost(config::Recompute::none);
  const auto cheap = cost(config::Recompute::cheap);
  const auto selective = cost(config::Recompute::selective);
  const auto full = cost(config::Recompute::full);
  const double product = 2.0 * 2 * 32 * 40 * 56;  // FLOPs of gate, up or down
  const auto flops = [](const app::PassFootprint& pass) { return pass.cost.product_flops; };
  // cheap repeats no GEMM; it frees two norms' outputs, the MLP's product and two columns of rstd.
  CHECK(flops(cheap.passes.backward_input) == flops(none.passes.backward_input));
  CHECK(cheap.passes.backward_input.cost.bytes > none.passes.backward_input.cost.bytes);
  CHECK(none.activation - cheap.activation == 2 * 32 * ((2 * 40 + 56) * 2 + 2 * 4));
  CHECK(cheap.weight_operands == none.weight_operands);
  // Both norms run again in each layer; the MLP's product comes with its gradient.
  CHECK(cheap.passes.backward_input.cost.kernels == none.passes.backward_input.cost.kernels + 2 * 2);
  CHECK(flops(selective.passes.backward_input) == flops(none.passes.backward_input) + 2 * product);
  CHECK(flops(full.passes.backward_input) ==
        flops(none.passes.backward_input) + flops(none.passes.forward) - product);
  CHECK(full.passes.forward.cost == none.passes.forward.cost);
  CHECK(full.activation < selective.activation);
  CHECK(selective.activation < cheap.activation);
  for (const config::Recompute recompute : config::all_recomputes)
    CHECK(config::Recomputation(recompute).most(3) == recompute);
}
