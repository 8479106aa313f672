// Files written for transformers, read again.
#include "models/hf_directory.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "models/hf_config.h"
#include "models/registry.h"
#include "models/weight_map.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using config::ModelSection;
using pptrain::test::contains_text;

namespace {

void add_own_settings(ModelSection& m) {
  const std::string arch = m.arch;
  const std::set<std::string> windows = {"qwen2", "mistral", "gemma2",    "gemma3_text",
                                         "phi3",  "gpt_oss", "starcoder2"};
  if (windows.contains(arch)) m.sliding_window = 7;
  if (arch == "qwen2" || arch == "gpt_oss" || arch.starts_with("gemma")) {
    m.layer_types = {"full_attention", "sliding_attention", "sliding_attention", "full_attention"};
  }
  if (arch.starts_with("gemma")) {
    m.query_pre_attn_scalar = 20;
    if (arch == "gemma2") m.attn_logit_softcapping = 4;
    m.final_logit_softcapping = 6;
  }
  if (arch == "gemma3_text") m.rope_local_base_freq = 1234.5;
  if (arch == "phi3" || arch == "gpt_neox") m.partial_rotary_factor = 0.45;
  if (arch == "smollm3") m.no_rope_layers = {0, 1, 1, 0};
  if (arch == "granite") {
    m.embedding_multiplier = 3;
    m.attention_multiplier = 0.5;
    m.residual_multiplier = 0.25;
    m.logits_scaling = 5;
  }
  if (arch == "qwen2_moe") m.shared_expert_intermediate_size = 48;
  if (arch == "gpt_oss") m.swiglu_limit = 2;
  if (arch == "gpt_neox") m.use_parallel_residual = false;
  if (arch == "gpt_neox" || arch == "gpt2") {  // every head has keys, and heads divide the width
    m.hidden_size = 84;
    m.num_key_value_heads = 6;
    m.head_dim = 14;
  }
  if (arch == "gpt2") m.rope_theta = 10000;
  if (arch.starts_with("deepseek")) {
    m.num_experts = 8;
    m.moe_intermediate_size = 40;
    m.shared_expert_intermediate_size = 120;
    m.mlp_only_layers = {0, 1};
    m.n_group = 4;
    m.topk_group = 2;
    m.routed_scaling_factor = 1.75;
    m.q_lora_rank = 18;
    m.kv_lora_rank = 22;
    m.qk_nope_head_dim = 12;
    m.qk_rope_head_dim = 6;
    m.v_head_dim = 10;
    m.num_key_value_heads = m.num_attention_heads;
    m.head_dim = 18;
  }
  if (arch == "deepseek_v3") m.norm_topk_prob = true;
}

// No two sizes alike, no value a default.
ModelSection section_of(std::string_view arch) {
  ModelSection m;
  m.arch = arch;
  m.initializer_range = 0.03;
  m.hidden_size = 80;
  m.intermediate_size = 96;
  m.num_hidden_layers = 4;
  m.num_attention_heads = 6;
  m.num_key_value_heads = 3;
  m.head_dim = 18;
  m.vocab_size = 131;
  m.rope_theta = 54321.5;
  m.rms_norm_eps = 3e-6;
  m.tie_word_embeddings = true;
  m.max_position_embeddings = 777;
  const std::set<std::string_view> without_bias = {"mixtral", "qwen2", "qwen2_moe", "mistral",
                                                   "phi3",    "gpt2",  "starcoder2"};
  m.attention_bias = !without_bias.contains(arch);
  m.mlp_bias = arch == "llama" || arch == "smollm3" || arch == "granite";
  if (arch == "mixtral" || arch == "qwen3_moe" || arch == "qwen2_moe" || arch == "gpt_oss" ||
      arch.starts_with("deepseek")) {
    m.num_experts = 5;
    m.num_experts_per_tok = 4;
  }
  if (arch == "qwen3_moe" || arch == "qwen2_moe") {
    m.norm_topk_prob = true;
    m.moe_intermediate_size = 40;
    m.decoder_sparse_step = 2;
    m.mlp_only_layers = {1, 2};
  }
  add_own_settings(m);
  return m;
}

nlohmann::ordered_json config_of(const ModelSection& model) {
  return models::hf_config(model, at::kBFloat16, {});
}

ModelSection there_and_back(const ModelSection& model) {
  return models::parse_hf_config(models::hf_config(model, at::kBFloat16, {}).dump(), "config.json");
}

void check_scalings(ModelSection model) {
  using enum config::RopeType;
  const auto check = [&](const config::RopeScaling& scaling) {
    model.rope_scaling = scaling;
    CHECK(there_and_back(model) == model);
  };
  check({.rope_type = linear, .factor = 2.5});
  check({.rope_type = dynamic, .factor = 2.5});
  check({llama3, 8, 1.25, 4.5, 4096});
  if (model.arch != "phi3") {  // its yarn is longrope
    check({.rope_type = yarn,
           .factor = 3,
           .original_max_position_embeddings = 99,
           .attention_factor = 1.25,
           .beta_fast = 30,
           .beta_slow = 2,
           .mscale = 0.5,
           .mscale_all_dim = 0.75,
           .truncate = false});
  }
  check({.rope_type = longrope,
         .factor = 3,
         .original_max_position_embeddings = 99,
         .attention_factor = 1.25,
         .short_factor = {1, 2},
         .long_factor = {3, 4}});
}

models::ModelConfig small(std::string_view arch, bool tied) {
  ModelSection section = section_of(arch);
  section.tie_word_embeddings = tied;
  return models::make_model_config(section, 1);
}

}  // namespace

TEST_CASE("a list of layers that the job leaves out is written, since transformers wants an entry for each") {
  const auto types = [](std::string_view arch, int64_t window) {
    ModelSection model = section_of(arch);
    model.sliding_window = window;
    model.layer_types.clear();
    return config_of(model).at("layer_types").get<std::vector<std::string>>();
  };
  CHECK(types("qwen2", 7) == std::vector<std::string>(4, "sliding_attention"));
  CHECK(types("gemma2", 0) == std::vector<std::string>(4, "full_attention"));
  CHECK(types("gpt_oss", 0) == std::vector<std::string>(4, "full_attention"));
}

TEST_CASE("config.json gives the model back, of every architecture") {
  for (const models::Architecture* architecture : models::architectures) {
    INFO(architecture->name);
    ModelSection model = section_of(architecture->name);
    CHECK(there_and_back(model) == model);
    if (model.arch != "gpt2") check_scalings(model);
    model.tie_word_embeddings = model.attention_bias = model.mlp_bias = model.norm_topk_prob = false;
    model.mlp_only_layers.clear();
    CHECK(there_and_back(model) == model);
  }
}

TEST_CASE("config.json names class, type and the ends of a text") {
  const auto json = models::hf_config(section_of("mixtral"), at::kHalf, {.bos = {}, .eos = {7}});
  CHECK(json["architectures"] == nlohmann::ordered_json{"MixtralForCausalLM"});
  CHECK(json["model_type"] == "mixtral");
  CHECK(json["torch_dtype"] == "float16");
  CHECK(json["dtype"] == "float16");
  CHECK(json["bos_token_id"].is_null());
  CHECK(json["eos_token_id"] == 7);
  CHECK(json["num_local_experts"] == 5);
  CHECK_THROWS_AS(models::hf_config(section_of("llama"), at::kDouble, {}), Error);
  ModelSection sparse = section_of("qwen3_moe");
  sparse.intermediate_size = 0;  // no layer has an MLP
  CHECK(models::hf_config(sparse, at::kFloat, {})["intermediate_size"] == 40);
}

TEST_CASE("a directory has every parameter once, and its tensors are filled by them") {
  for (const models::Architecture* architecture : models::architectures) {
    for (const bool tied : {false, true}) {
      INFO(architecture->name << (tied ? ", tied" : ""));
      const models::ModelConfig model = small(architecture->name, tied);
      models::TransformerStage whole(model, models::whole_model(model));
      std::set<std::string> parameters, names;
      for (const nn::ParameterSpec* spec : whole.parameters().specs()) parameters.insert(spec->name);
      if (model.tied) parameters.erase("head.weight");
      for (const models::HfTensor& tensor : models::hf_tensors(model)) {
        INFO(tensor.name);
        CHECK(names.insert(tensor.name).second);
        const at::Tensor places = at::zeros(tensor.shape);
        for (const models::HfWeight& part : tensor.parts) {
          CHECK(parameters.erase(part.parameter) == 1);
          part.view_of(places).add_(1);
        }
        CHECK(places.eq(1).all().item<bool>());
      }
      CHECK(parameters.empty());
    }
  }
}

TEST_CASE("a tensor of all experts holds the matrices one after the other") {
  for (const char* arch : {"qwen3_moe", "mixtral"}) {
    INFO(arch);
    const models::ModelConfig model = small(arch, false);
    const models::WeightMap map = models::weight_map(model, models::whole_model(model));
    const models::HfTensor* const fused = map.find("model.layers.3.mlp.experts.gate_up_proj");
    REQUIRE(fused);
    const int64_t width = model.sparse.intermediate;
    CHECK(fused->shape == std::vector<int64_t>{5, 2 * width, 80});
    REQUIRE(fused->parts.size() == 10);
    for (int64_t i = 0; i < 10; ++i) {
      const models::HfWeight& part = fused->parts[static_cast<size_t>(i)];
      CHECK(part.parameter ==
            "layers.3.mlp.experts." + std::to_string(i / 2) + (i % 2 == 0 ? ".gate" : ".up") + ".weight");
      CHECK(part.first == i * width * 80);
      CHECK(part.is_contiguous());
    }
    CHECK(map.tensors_of("layers.3.mlp.experts.1.down.weight").back() ==
          "model.layers.3.mlp.experts.down_proj");
    CHECK(map.find("model.layers.0.self_attn.rotary_emb.inv_freq") == nullptr);
  }
}

TEST_CASE("a width that transformers refuses is said before the run") {
  const auto warnings = [](const char* arch, int64_t heads) {
    ModelSection section = section_of(arch);
    section.hidden_size = 96;
    section.num_attention_heads = heads;
    section.num_key_value_heads = 1;
    section.head_dim = 32;
    return models::export_warnings(models::make_model_config(section, 1));
  };
  CHECK(warnings("llama", 5) ==
        std::vector<std::string>{
            "model.hidden_size = 96 is no multiple of num_attention_heads = 5: transformers "
            "refuses such a LlamaForCausalLM"});
  CHECK(warnings("llama", 6).empty());
  CHECK(warnings("qwen3", 5).empty());
}

TEST_CASE("adapters that peft cannot have are said before the run") {
  const auto warnings = [](const char* arch) {
    ModelSection section = section_of(arch);
    section.hidden_size = 96;
    models::ModelConfig model = models::make_model_config(section, 1);
    model.lora.rank = 2;
    model.lora.targets = {"*.q", "*.o"};
    return models::export_warnings(model);
  };
  CHECK(warnings("llama").empty());
  const auto of_phi = warnings("phi3");  // whose files have q, k and v in one tensor
  REQUIRE(of_phi.size() == 1);
  CHECK_THAT(of_phi[0], contains_text("adapters of attn.q: phi3's files"));
}

TEST_CASE("a bias that balances experts has a tensor in DeepSeek-V3 alone") {
  const auto model = [](const char* arch) {
    ModelSection section = section_of(arch);
    section.router_bias_update_rate = 0.01;
    return models::make_model_config(section, 1);
  };
  const auto tensors = [&](const char* arch) { return models::hf_tensors(model(arch)); };
  // Said before a run that cannot be exported begins, once for all layers.
  const auto warnings = models::export_warnings(model("mixtral"));
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], contains_text("layers.0.mlp.router.bias") && contains_text("cannot write it"));
  CHECK(models::export_warnings(model("deepseek_v3")).empty());
  CHECK_THROWS_WITH(tensors("mixtral"),
                    contains_text("MixtralForCausalLM") && contains_text("router_bias_update_rate"));
  CHECK_THROWS_WITH(tensors("deepseek_v2"),
                    contains_text("DeepseekV2ForCausalLM") && contains_text("router_bias_update_rate"));
  const auto written = tensors("deepseek_v3");
  CHECK(std::ranges::any_of(written, &models::HfTensor::float32));
  for (const models::HfTensor& tensor : written)
    CHECK(tensor.float32 == tensor.name.ends_with("mlp.gate.e_score_correction_bias"));
}
