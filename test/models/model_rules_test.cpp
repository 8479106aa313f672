// The rules of [model], and the meaning of its zeros, as users meet them in a job.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/config/options.h"
#include "models/flops.h"
#include "models/registry.h"
#include "test/models/model_hooks.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using Catch::Matchers::StartsWith;
using config::test::essentials;
using config::test::Folder;

namespace {

struct Case {
  std::string text;
  std::string start;  // the start of the message's only line
};

}  // namespace

TEST_CASE("the size of a model is told in millions, and in billions") {
  CHECK(models::parameters_text(1'870'000) == "1.87 M parameters");
  CHECK(models::parameters_text(999'994'000) == "999.99 M parameters");
  CHECK(models::parameters_text(77'851'803'648) == "77.85 B parameters");
}

TEST_CASE("what 0 stands for is filled in") {
  const Folder folder;
  const config::ModelSection model = parse("", essentials(folder)).model;
  CHECK(model.num_key_value_heads == 4);
  CHECK(model.head_dim == 16);
  CHECK(model.max_position_embeddings == 16);
}

TEST_CASE(
    "the scale of attention's scores is filled in for families that have one, and stays where it is given") {
  const Folder folder;
  const auto scale = [&](std::vector<std::string> changes) {
    std::vector<std::string> overrides = essentials(folder);
    overrides.insert(overrides.end(), changes.begin(), changes.end());
    const config::ModelSection model = parse("", overrides).model;
    return std::pair(model.query_pre_attn_scalar, model.attention_multiplier);
  };
  CHECK(scale({"model.arch=gemma2"}) == std::pair(int64_t{16}, 0.0));
  CHECK(scale({"model.arch=gemma2", "model.query_pre_attn_scalar=9"}) == std::pair(int64_t{9}, 0.0));
  CHECK(scale({"model.arch=granite"}) == std::pair(int64_t{0}, 0.25));
  CHECK(scale({"model.arch=granite", "model.attention_multiplier=3"}) == std::pair(int64_t{0}, 3.0));
  CHECK(scale({"model.arch=llama"}) == std::pair(int64_t{0}, 0.0));
}

TEST_CASE("layers of a family follow its pattern, unless a list says otherwise") {
  const Folder folder;
  const auto model = [&](std::vector<std::string> changes) {
    std::vector<std::string> overrides = essentials(folder);
    overrides.push_back("model.num_hidden_layers=6");
    for (std::string& change : changes) overrides.push_back(std::move(change));
    return models::make_model_config(parse("", overrides).model, 16);
  };
  const models::ModelConfig gemma =
      model({"model.arch=gemma3_text", "model.sliding_window=8", "model.rope_local_base_freq=77"});
  CHECK(gemma.kind(4) == models::LayerKind{.window = 8, .rope = 1});
  CHECK(gemma.kind(5) == models::LayerKind{});
  CHECK(gemma.attention_scale == 0.25);
  CHECK(gemma.local_rope_theta == 77);
  CHECK(gemma.embedding_scale == 8);
  CHECK(model({"model.arch=gemma2"}).kind(0) == models::LayerKind{});
  CHECK(model({"model.arch=mistral", "model.sliding_window=8"}).kind(5).window == 8);
  const models::ModelConfig smollm = model({"model.arch=smollm3"});
  CHECK(smollm.kind(2).rope == 0);
  CHECK(smollm.kind(3).rope == -1);
  CHECK(model({"model.arch=smollm3", "model.no_rope_layers=[0,1,1,1,1,1]"}).kind(3).rope == 0);
  CHECK(model({"model.arch=gpt2"}).kind(0).rope == -1);
  CHECK(model({"model.arch=gpt_neox", "model.partial_rotary_factor=0.25"}).rotary_dim == 4);
  CHECK(model({"model.arch=gpt_neox"}).parallel_residual);
  CHECK_FALSE(model({"model.arch=llama"}).parallel_residual);
}

TEST_CASE("settings that contradict each other are laid at the key to change") {
  const Folder folder;
  const std::string base =
      "[data]\npath = '" + folder.data() +
      "'\n[train]\nseq_len = 16\n[model]\nhidden_size = 64\nintermediate_size = 128\n" +
      "vocab_size = 256\nnum_hidden_layers = 4\nnum_attention_heads = 4\n";  // 10 lines; [model] is open
  REQUIRE(refusal(base) == "");
  const std::vector<Case> cases = {
      {"num_key_value_heads = 3\n",
       "job.toml:11:23: model.num_key_value_heads: num_attention_heads = 4 is not divisible by "
       "num_key_value_heads = 3"},
      {"head_dim = 15\n",
       "job.toml:11:12: model.head_dim: head_dim = 15 is odd: rotary embeddings need an even"},
      {"max_position_embeddings = 15\n",
       "job.toml:4:11: train.seq_len: seq_len = 16 is longer than model.max_position_embeddings = 15"},
      {"arch = 'gpt2'\nattention_bias = true\n",
       "job.toml:12:18: model.attention_bias: gpt2 has biases in its attention by itself"},
      {"arch = 'gpt2'\nnum_key_value_heads = 2\n",
       "job.toml:12:23: model.num_key_value_heads: every head of gpt2 has keys"},
      {"arch = 'gpt_neox'\nhead_dim = 8\n", "job.toml:12:12: model.head_dim: a head of gpt_neox has"},
      {"arch = 'gpt2'\nrope_theta = 500.0\n", "job.toml:12:14: model.rope_theta: "},
      {"arch = 'gpt2'\nrope_scaling = {rope_type = 'linear', factor = 2.0}\n",
       "job.toml:12:29: model.rope_scaling.rope_type: "},
      {"arch = 'gemma2'\nsliding_window = 8\nlayer_types = ['full_attention']\n",
       "job.toml:13:15: model.layer_types: has 1 entries for num_hidden_layers = 4"},
      {"arch = 'gpt_neox'\npartial_rotary_factor = 0.2\n",
       "job.toml:12:25: model.partial_rotary_factor: head_dim * partial_rotary_factor = 3 dims"},
      {"arch = 'phi3'\nrope_scaling = {rope_type = 'longrope', short_factor = [1.0], long_factor = [1.0, "
       "1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]}\n",
       "job.toml:12:56: model.rope_scaling.short_factor: has 1 numbers; give 8, one for each"},
      {"arch = 'phi3'\nrope_scaling = {rope_type = 'yarn', factor = 2.0}\n",
       "job.toml:12:29: model.rope_scaling.rope_type: phi3 has longrope or no scaling"},
      {"sliding_window = 8\n", "job.toml:11:18: model.sliding_window: "},
      {"no_rope_layers = [1, 1, 1, 0]\n", "job.toml:11:18: model.no_rope_layers: "},
      {"arch = 'qwen3'\nmlp_bias = true\n", "job.toml:12:12: model.mlp_bias: qwen3 has no biases in its MLP"},
      {"rope_scaling = {rope_type = 'llama3', low_freq_factor = 4.0}\n",
       "job.toml:11:57: model.rope_scaling.low_freq_factor: high_freq_factor = 4 is not above"},
  };
  for (const Case& c : cases) {
    INFO(c.text);
    const std::string message = refusal(base + c.text);
    CHECK_THAT(message, StartsWith(c.start));
    CHECK(message.find('\n') == std::string::npos);
  }
}

TEST_CASE("sizes that contradict each other") {
  const Folder folder;
  const std::string text = "[data]\npath = '" + folder.data() + "'\n[train]\nseq_len = 16\n[model]\n";
  const auto sizes = [&](int hidden, int heads, const std::string& more = "") {
    return refusal(text + fmt::format("hidden_size = {}\nnum_attention_heads = {}\nvocab_size = 256\n"
                                      "intermediate_size = 8\nnum_hidden_layers = 1\n{}",
                                      hidden, heads, more));
  };
  CHECK(sizes(64, 4) == "");
  CHECK_THAT(sizes(65, 4),
             StartsWith("job.toml:6:15: model.hidden_size: hidden_size = 65 is not divisible by "
                        "num_attention_heads = 4: change one of them, or give model.head_dim"));
  CHECK(sizes(65, 4, "head_dim = 16\n") == "");
  CHECK_THAT(sizes(60, 4), StartsWith("job.toml:6:15: model.hidden_size: head_dim (hidden_size / "
                                      "num_attention_heads) = 15 is odd"));
  CHECK(sizes(64, 4, "[data2]\n") != "");
}

TEST_CASE("sizes that are missing are named at their section") {
  const std::string message = refusal("[run]\nseed = 1\n[model]\n[train]\n");
  CHECK_THAT(message,
             StartsWith("job.toml:3:1: model.hidden_size: is required where there is no model.hf_dir"));
  for (const char* size : {"intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}) {
    CHECK_THAT(message, contains_text(fmt::format("job.toml:3:1: model.{}: is required", size)));
  }
  CHECK_THAT(message, contains_text("\njob.toml:4:1: train.seq_len: is required."));
}

TEST_CASE("sizes that an architecture needs are named, not the key that asks for them") {
  const std::string message = refusal(
      "[model]\narch = \"mixtral\"\nhidden_size = 32\nintermediate_size = 32\nnum_hidden_layers = 1\n"
      "num_attention_heads = 2\nvocab_size = 256\n[train]\nseq_len = 8\n[data]\npath = \"x\"\n");
  for (const char* size : {"num_experts", "num_experts_per_tok"}) {
    CHECK_THAT(message,
               contains_text(fmt::format(
                   "job.toml:2:8: model.arch: mixtral needs model.{} where there is no model.hf_dir", size)));
  }
}

TEST_CASE("a size that could not be taken starts no contradiction of its own") {
  const Folder folder;
  config::test::Overrides overrides = essentials(folder);
  overrides.push_back("model.num_attention_heads=x");
  const std::string message = refusal("[model]\nnum_key_value_heads = 3\n", overrides);
  CHECK_THAT(message, StartsWith("--set model.num_attention_heads=x: wrong type"));
  CHECK(message.find('\n') == std::string::npos);
}

TEST_CASE("model.arch takes the names of the registry") {
  const std::vector<std::string>& literals = config::find_option("model.arch")->literals;
  CHECK(std::ranges::equal(literals, models::architectures, {}, {}, &models::Architecture::name));
}

TEST_CASE(
    "sizes of latent attention and experts that do not fit are refused, and those at the bounds are not") {
  const Folder folder;
  const auto refused = [&](std::vector<std::string> settings, const std::vector<std::string>& changes) {
    config::test::Overrides all = essentials(folder);
    all.insert(all.end(), settings.begin(), settings.end());
    all.insert(all.end(), changes.begin(), changes.end());
    return refusal("", all);
  };
  const std::vector<std::string> latent = {"model.arch=deepseek_v2",
                                           "model.num_experts=8",
                                           "model.num_experts_per_tok=4",
                                           "model.moe_intermediate_size=16",
                                           "model.shared_expert_intermediate_size=32",
                                           "model.kv_lora_rank=8",
                                           "model.qk_nope_head_dim=4",
                                           "model.qk_rope_head_dim=4",
                                           "model.v_head_dim=8",
                                           "model.n_group=4",
                                           "model.topk_group=2",
                                           "model.mlp_only_layers=[0,1]"};
  REQUIRE(refused(latent, {}) == "");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"model.v_head_dim=9"}, "v_head_dim = 9 is above qk_nope_head_dim + qk_rope_head_dim = 8"},
      {{"model.qk_rope_head_dim=5", "model.qk_nope_head_dim=3"}, "5 is odd: rotary embeddings"},
      {{"model.num_experts_per_tok=5"}, "5 of 8 experts cannot be chosen in 2 of 4 equal groups"},
      {{"model.n_group=3"}, "4 of 8 experts cannot be chosen in 2 of 3 equal groups"},
      {{"model.topk_group=5"}, "4 of 8 experts cannot be chosen in 5 of 4 equal groups"},
      {{"model.shared_expert_intermediate_size=40"}, "is not a multiple of moe_intermediate_size = 16"},
      {{"model.mlp_only_layers=[0,2]"}, "names layer 2 in the place of 1"}};
  for (const auto& [changes, text] : cases) CHECK_THAT(refused(latent, changes), contains_text(text));
  const std::vector<std::string> sparse = {"model.arch=qwen3_moe", "model.num_experts=4",
                                           "model.num_experts_per_tok=4", "model.moe_intermediate_size=16",
                                           "model.mlp_only_layers=[3]"};
  REQUIRE(refused(sparse, {}) == "");
  CHECK_THAT(refused(sparse, {"model.num_experts_per_tok=5"}),
             contains_text("num_experts_per_tok = 5 is above num_experts = 4"));
  CHECK_THAT(refused(sparse, {"model.mlp_only_layers=[4]"}), contains_text("names layer 4, but there are 4"));
}

TEST_CASE("FLOPs of a token under windows, in latent attention, and of weights that are frozen") {
  const auto attention = [](const char* arch, int64_t seq) {
    const models::ModelConfig model = small_model(arch, false);
    return models::flops_per_token(model, seq) - models::flops_per_token(model, 0);
  };
  CHECK(attention("mistral", 16) == 3 * 4 * 5 * (2 - 5.0 / 16) * 3 * 32);  // 4 layers, a window of 5
  CHECK(attention("mistral", 4) == 3 * 4 * 4.0 * 3 * 32);
  CHECK(attention("deepseek_v2", 1) == 3 * 4 * 3 * (10.0 + 8));  // keys of 10 dims, values of 8
  models::ModelConfig model = small_model("llama", false);
  const double learns = models::flops_per_token(model, 0);
  model.groups = {{.match = "*", .frozen = true}};
  CHECK(6 * models::flops_per_token(model, 0) == 4 * learns);
  CHECK(models::parameter_count(model, /*learning_only=*/true) == 0);
}
