// From [model] to sizes, names and costs, and weights from a Hugging Face directory.
#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include <filesystem>

#include "core/base/error.h"
#include "core/io/safetensors.h"
#include "models/flops.h"
#include "models/hf_loader.h"
#include "models/model_config.h"
#include "models/registry.h"
#include "models/weight_map.h"
#include "parallel/pipeline/split_layers.h"
#include "test/core/kernels/compare.h"
#include "test/models/model_support.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;

namespace {

config::ModelSection section() {
  config::ModelSection section;
  section.hidden_size = 48;
  section.intermediate_size = 64;
  section.num_hidden_layers = 2;
  section.num_attention_heads = 4;
  section.vocab_size = 100;
  return section;
}

models::ModelConfig llama3_8b() {
  config::ModelSection section;
  section.hidden_size = 4096;
  section.intermediate_size = 14336;
  section.num_hidden_layers = 32;
  section.num_attention_heads = 32;
  section.num_key_value_heads = 8;
  section.vocab_size = 128256;
  return models::make_model_config(section, 8192);
}

models::ModelConfig qwen3_600m() {
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
  return models::make_model_config(section, 4096);
}

models::StageSlice whole(const models::ModelConfig& model) {
  return models::stage_slice(pipeline::compute_layer_assignment(static_cast<int>(model.layers), 1), 0);
}

// A folder that is removed at the end.
struct Folder {
  std::filesystem::path path;
  explicit Folder(const std::string& name) : path(std::filesystem::temp_directory_path() / ("pptrain_models_" + name)) {
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
};

using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

// Every tensor of the model under its Hugging Face name, of random values.
Tensors random_weights(const models::ModelConfig& model, at::ScalarType type) {
  at::manual_seed(3);
  Tensors tensors;
  const models::TransformerStage stage(model, whole(model));
  for (const auto& parameter : const_cast<models::TransformerStage&>(stage).parameters().parameters()) {
    if (model.tied && parameter.spec.name == "head.weight") continue;
    tensors.emplace_back(models::hf_name(parameter.spec.name, model.tied), at::randn(parameter.spec.shape).to(type));
  }
  return tensors;
}

}  // namespace

TEST_CASE("defaults of the model section", "[models]") {
  const models::ModelConfig model = models::make_model_config(section(), 32);
  CHECK(model.kv_heads == 4);
  CHECK(model.head_dim == 12);
  CHECK(model.max_seq == 32);
  CHECK_FALSE(model.rope_llama3);
  auto scaled = section();
  scaled.rope_scaling = {.rope_type = "llama3", .factor = 32, .original_max_position_embeddings = 4096};
  CHECK(models::make_model_config(scaled, 32).rope_llama3->factor == 32);
  CHECK(models::make_model_config(scaled, 32).rope_llama3->original_max_position_embeddings == 4096);
  scaled.rope_scaling.rope_type = "linear";
  CHECK(models::make_model_config(scaled, 32).rope_linear->factor == 32);
}

TEST_CASE("a section that is no model is refused by the key", "[models]") {
  const auto check_refused = [](auto change, const std::string& text, int64_t seq_len = 32) {
    config::ModelSection changed = section();
    change(changed);
    CHECK_THROWS_WITH(models::make_model_config(changed, seq_len), contains_text(text));
  };
  check_refused([](auto& s) { s.arch = "gpt2"; }, "model.arch: \"gpt2\" is not known; valid are \"llama\", \"qwen3\"");
  check_refused([](auto& s) { s.vocab_size = 0; }, "model.vocab_size: 0");
  check_refused([](auto& s) { s.num_hidden_layers = -1; }, "model.num_hidden_layers: -1");
  check_refused([](auto& s) { s.num_key_value_heads = 3; }, "model.num_key_value_heads: 3 does not divide");
  check_refused([](auto& s) { s.num_attention_heads = 5; }, "model.num_attention_heads: 5 does not divide");
  check_refused([](auto& s) { s.head_dim = 7; }, "model.head_dim: 7 is odd");
  check_refused([](auto& s) { s.rope_scaling.rope_type = "yarn"; }, "\"yarn\" is not known");
  check_refused([](auto& s) { s.max_position_embeddings = 31; }, "over model.max_position_embeddings = 31");
  check_refused([](auto&) {}, "train.seq_len: 0", 0);
  check_refused([](auto& s) { s.arch = "qwen3", s.mlp_bias = true; }, "model.mlp_bias: qwen3");
}

TEST_CASE("sizes of models whose sizes are public", "[models]") {
  const models::ModelConfig llama = llama3_8b();
  const models::StageSize size = models::stage_size(llama, whole(llama), true);
  CHECK(size.layers == 32);
  CHECK(size.parameters == 8'030'261'248);
  CHECK(size.total_bytes() == 18 * size.parameters);
  // 6 per weight of the products (all but the embedding and 65 norms), 6 layers seq hidden for causal attention.
  CHECK(models::flops_per_token(llama, 8192) == 6.0 * (8'030'261'248 - 128256 * 4096 - 65 * 4096) + 6.0 * 32 * 8192 * 4096);
  const models::ModelConfig qwen = qwen3_600m();
  // The head is a copy of the tied embedding.
  CHECK(models::stage_size(qwen, whole(qwen), false).parameters == 596'049'920 + 151936 * 1024);
}

TEST_CASE("stages add up to the model", "[models]") {
  const auto model = GENERATE(llama3_8b(), qwen3_600m());
  const auto assignment = pipeline::compute_layer_assignment(static_cast<int>(model.layers), 4, 1, 2);
  int64_t parameters = 0;
  double flops = 0;
  for (int i = 0; i < 4; ++i) {
    const models::StageSlice slice = models::stage_slice(assignment, i);
    CHECK(slice.embedding == (i == 0));
    CHECK(slice.head == (i == 3));
    parameters += models::stage_size(model, slice, true).parameters;
    const models::StageCost cost = models::stage_cost(model, slice, 2, 1024);
    flops += cost.forward + cost.input + cost.weight;
  }
  CHECK(parameters == models::stage_size(model, whole(model), true).parameters);
  CHECK(flops == Approx(models::flops_per_token(model, 1024) * 2048));
}

TEST_CASE("names translate both ways", "[models]") {
  CHECK(models::hf_name("layers.17.attn.q.weight", false) == "model.layers.17.self_attn.q_proj.weight");
  CHECK(models::hf_name("layers.3.mlp_norm.weight", false) == "model.layers.3.post_attention_layernorm.weight");
  CHECK(models::hf_name("head.weight", false) == "lm_head.weight");
  CHECK(models::hf_name("head.weight", true) == "model.embed_tokens.weight");
  for (const std::string wrong : {"layers.attn.q.weight", "layers.1.attn.q", "layers.1.attn.x.weight", "layers.", "x"}) {
    CHECK_THROWS_AS(models::hf_name(wrong, false), Error);
    CHECK_FALSE(models::global_name("model." + wrong));
  }
  CHECK_FALSE(models::global_name("model.layers.0.self_attn.rotary_emb.inv_freq"));
  for (const std::string arch : {"llama", "qwen3"}) {
    const models::ModelConfig model = small_model(arch, false);
    models::TransformerStage stage(model, whole(model));
    for (const auto& parameter : stage.parameters().parameters()) {
      CHECK(models::global_name(models::hf_name(parameter.spec.name, false)) == parameter.spec.name);
    }
  }
}

TEST_CASE("initial values depend on seed and name alone; a tied head starts as the embedding", "[models]") {
  const c10::InferenceMode inference;
  const auto tied = GENERATE(false, true);
  const models::ModelConfig model = small_model("llama", tied);
  const auto assignment = pipeline::compute_layer_assignment(4, 4);
  models::TransformerStage all(model, whole(model)), first(model, models::stage_slice(assignment, 0)),
      last(model, models::stage_slice(assignment, 3));
  for (auto* stage : {&all, &first, &last}) {
    stage->materialise(at::kCPU, at::kFloat);
    stage->parameters().initialise(8);
  }
  for (auto* stage : {&first, &last}) {
    for (const auto& parameter : stage->parameters().parameters()) {
      CHECK(same_bits(parameter.master, all.parameters().find(parameter.spec.name)->master));
    }
  }
  CHECK(same_bits(first.embedding_weight()->master, last.head_weight()->master) == tied);
  CHECK(first.head_weight() == nullptr);
  CHECK(last.embedding_weight() == nullptr);
}

TEST_CASE("weights from a Hugging Face directory, whole or by stage", "[models]") {
  const c10::InferenceMode inference;
  const auto stored = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const models::ModelConfig model = small_model("qwen3", true);
  const Folder folder("load");
  const Tensors tensors = random_weights(model, stored);
  io::write_safetensors(folder.path / "model.safetensors", tensors);
  const std::map<std::string, at::Tensor> by_name(tensors.begin(), tensors.end());
  const auto assignment = pipeline::compute_layer_assignment(4, 2);
  for (int i = 0; i < 2; ++i) {
    models::TransformerStage stage(model, models::stage_slice(assignment, i));
    stage.materialise(at::kCPU, at::kBFloat16);
    models::load_hf_weights(stage, folder.path);
    for (const auto& parameter : stage.parameters().parameters()) {
      INFO(parameter.spec.name);
      const at::Tensor& expected = by_name.at(models::hf_name(parameter.spec.name, true));
      CHECK(same_bits(parameter.master, expected.to(at::kFloat)));
      CHECK(same_bits(parameter.compute, expected.to(at::kFloat).to(at::kBFloat16)));
    }
  }
}

TEST_CASE("a Hugging Face directory that does not fit is refused by the tensor", "[models]") {
  const c10::InferenceMode inference;
  const models::ModelConfig model = small_model("llama", false);
  const Tensors tensors = random_weights(model, at::kFloat);
  const std::string name = "model.layers.2.mlp.up_proj.weight";
  const auto message = [&](const at::Tensor& replacement) {
    const Folder folder("refuse");
    Tensors changed;
    for (const auto& [tensor_name, tensor] : tensors) {
      if (tensor_name != name) changed.emplace_back(tensor_name, tensor);
      if (tensor_name == name && replacement.defined()) changed.emplace_back(tensor_name, replacement);
    }
    io::write_safetensors(folder.path / "model.safetensors", changed);
    models::TransformerStage stage(model, whole(model));
    stage.materialise(at::kCPU, at::kFloat);
    try {
      models::load_hf_weights(stage, folder.path);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  CHECK_THAT(message({}), contains_text(name));
  CHECK_THAT(message(at::zeros({40, 56})), contains_text(name + " has shape [40, 56], layers.2.mlp.up.weight needs [56, 40]"));
  CHECK_THAT(message(at::zeros({56, 40}, at::kLong)), contains_text(name + " does not hold floating-point numbers"));
  CHECK(message(at::zeros({56, 40})) == "no error");
}
