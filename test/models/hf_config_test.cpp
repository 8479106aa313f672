// The model of a Hugging Face directory, with files as transformers writes them.
#include "models/hf_config.h"

#include <nlohmann/json.hpp>
#include <string>

#include "core/config/loader.h"
#include "test/models/model_hooks.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using Catch::Matchers::StartsWith;
using config::JobConfig;
using config::ModelSection;
using config::RopeScaling;
using config::test::Folder;
using models::read_hf_config;
using Json = nlohmann::json;

namespace {

// Llama-3.2-1B's, smaller.
Json llama() {
  return Json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
    "head_dim": 24, "hidden_act": "silu", "hidden_size": 80, "initializer_range": 0.03, "intermediate_size": 160,
    "max_position_embeddings": 131072, "mlp_bias": true, "model_type": "llama", "num_attention_heads": 4,
    "num_hidden_layers": 6, "num_key_value_heads": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.5, "low_freq_factor": 1.5,
                     "original_max_position_embeddings": 4096, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 300})");
}

Json qwen3() {
  return Json::parse(R"({
    "attention_bias": true, "attention_dropout": 0.0, "head_dim": 32, "hidden_act": "silu", "hidden_size": 64,
    "intermediate_size": 96, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
    "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": false,
    "use_cache": true, "use_sliding_window": false, "vocab_size": 320})");
}

std::string job_text(const Folder& folder, const std::string& model) {
  return "[data]\npath = '" + folder.data() + "'\n[train]\nseq_len = 16\n[model]\nhf_dir = '" +
         folder.path("hf") + "'\n" + model;
}

std::string refused(const Folder& folder, const Json& config) {
  folder.write("hf/config.json", config.dump());
  try {
    read_hf_config(folder.path("hf"));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a llama directory gives every key of the model") {
  const Folder folder;
  folder.write("hf/config.json", llama().dump());
  const ModelSection m = parse(job_text(folder, "")).model;
  CHECK(m.arch == "llama");
  CHECK(m.hidden_size == 80);
  CHECK(m.intermediate_size == 160);
  CHECK(m.num_hidden_layers == 6);
  CHECK(m.num_attention_heads == 4);
  CHECK(m.num_key_value_heads == 2);
  CHECK(m.head_dim == 24);
  CHECK(m.vocab_size == 300);
  CHECK(m.max_position_embeddings == 131072);
  CHECK(m.rope_theta == 500000);
  CHECK(m.rope_scaling == RopeScaling{config::RopeType::llama3, 32, 1.5, 4.5, 4096});
  CHECK(m.rms_norm_eps == 1e-5);
  CHECK(m.initializer_range == 0.03);
  CHECK(m.tie_word_embeddings);
  CHECK(!m.attention_bias);
  CHECK(m.mlp_bias);
}

TEST_CASE("a qwen3 directory, and the newer rope_parameters") {
  const Folder folder;
  Json config = qwen3();
  folder.write("hf/config.json", config.dump());
  const ModelSection older = parse(job_text(folder, "")).model;
  CHECK(older.arch == "qwen3");
  CHECK(older.head_dim == 32);
  CHECK(older.rope_theta == 1e6);
  CHECK(older.attention_bias);
  CHECK(older.rope_scaling == RopeScaling());
  config.erase("rope_theta");
  config.erase("rope_scaling");
  config["rope_parameters"] = {{"rope_theta", 250000.0}, {"rope_type", "linear"}, {"factor", 2.0}};
  folder.write("hf/config.json", config.dump());
  const ModelSection newer = parse(job_text(folder, "")).model;
  CHECK(newer.rope_theta == 250000);
  CHECK(newer.rope_scaling.rope_type == config::RopeType::linear);
  CHECK(newer.rope_scaling.factor == 2);
}

TEST_CASE("directories of models with experts, under either name of their number") {
  const Folder folder;
  Json config = qwen3();
  config.update(Json::parse(R"({"model_type": "qwen3_moe", "attention_bias": false, "num_experts": 16,
    "num_experts_per_tok": 4, "moe_intermediate_size": 40, "norm_topk_prob": true, "decoder_sparse_step": 2,
    "mlp_only_layers": [1], "router_aux_loss_coef": 0.001})"));
  folder.write("hf/config.json", config.dump());
  const ModelSection m = parse(job_text(folder, "")).model;
  CHECK(m.arch == "qwen3_moe");
  CHECK(m.num_experts == 16);
  CHECK(m.num_experts_per_tok == 4);
  CHECK(m.moe_intermediate_size == 40);
  CHECK(m.norm_topk_prob);
  CHECK(m.decoder_sparse_step == 2);
  CHECK(m.mlp_only_layers == std::vector<int64_t>{1});
  CHECK(m.router_aux_loss_coef == 0);  // the job chooses it
  config["num_local_experts"] = 8;
  folder.write("hf/config.json", config.dump());
  CHECK(read_hf_config(folder.path("hf")).num_experts == 8);
  config["mlp_only_layers"] = "1";
  CHECK_THAT(refused(folder, config), contains_text("mlp_only_layers: \"1\" is not a list of integers"));

  Json mixtral = llama();
  mixtral.update(Json::parse(R"({"model_type": "mixtral", "mlp_bias": null, "num_local_experts": 8,
    "num_experts_per_tok": 2, "head_dim": null, "sliding_window": null, "rope_scaling": null})"));
  folder.write("hf/config.json", mixtral.dump());
  const ModelSection x = read_hf_config(folder.path("hf"));
  CHECK(x.arch == "mixtral");
  CHECK(x.num_experts == 8);
  CHECK(x.num_experts_per_tok == 2);
  CHECK(x.head_dim == 20);
  mixtral["sliding_window"] = 4096;
  CHECK_THAT(refused(folder, mixtral),
             contains_text("sliding_window: sliding-window attention is not supported"));
}

TEST_CASE("what config.json leaves out is as in transformers") {
  const Folder folder;
  const Json small = {{"model_type", "llama"},   {"hidden_size", 64},
                      {"intermediate_size", 96}, {"num_attention_heads", 4},
                      {"num_hidden_layers", 2},  {"vocab_size", 256},
                      {"head_dim", nullptr},     {"num_key_value_heads", nullptr}};
  folder.write("hf/config.json", small.dump());
  const ModelSection m = read_hf_config(folder.path("hf"));
  CHECK(m.num_key_value_heads == 4);
  CHECK(m.head_dim == 16);
  CHECK(m.max_position_embeddings == 2048);
  CHECK(m.rope_theta == 10000);
  CHECK(m.rms_norm_eps == 1e-6);
  CHECK(!m.tie_word_embeddings);
}

TEST_CASE("keys that fix the weights must agree with hf_dir; others win over it") {
  const Folder folder;
  folder.write("hf/config.json", llama().dump());
  const std::string agree =
      "hidden_size = 80\nvocab_size = 300\nhead_dim = 24\narch = 'llama'\ntie_word_embeddings = true\n"
      "mlp_bias = true\nnum_key_value_heads = 0\n";
  CHECK(parse(job_text(folder, agree)).model == parse(job_text(folder, "")).model);
  CHECK_THAT(
      refusal(job_text(folder, "hidden_size = 96\n")),
      StartsWith("job.toml:7:15: model.hidden_size: 96 contradicts 80 in " + folder.path("hf/config.json")));
  CHECK_THAT(refusal(job_text(folder, "arch = 'qwen3'\n")), contains_text("\"qwen3\" contradicts \"llama\""));
  CHECK_THAT(refusal(job_text(folder, "tie_word_embeddings = false\n")),
             contains_text("false contradicts true"));
  const ModelSection longer = parse(job_text(folder,
                                             "rope_theta = 1e6\nmax_position_embeddings = 200000\n"
                                             "rope_scaling = {rope_type = 'linear', factor = 2}\n"))
                                  .model;
  CHECK(longer.rope_theta == 1e6);
  CHECK(longer.max_position_embeddings == 200000);
  CHECK(longer.rope_scaling == RopeScaling{config::RopeType::linear, 2, 1, 4, 8192});
}

TEST_CASE("a resolved job with hf_dir reads back as the same job") {
  const Folder folder;
  for (const Json& config : {llama(), qwen3()}) {
    folder.write("hf/config.json", config.dump());
    const JobConfig job = parse(job_text(folder, ""));
    CHECK(parse(config::to_toml(job)) == job);
  }
}

TEST_CASE("hf weights must be there when they are asked for") {
  const Folder folder;
  folder.write("hf/config.json", qwen3().dump());
  CHECK_THAT(refusal(job_text(folder, "init = 'hf'\n")),
             StartsWith("job.toml:7:8: model.init: init = \"hf\", but \""));
  folder.write("hf/model-00001-of-00002.safetensors", "");
  CHECK(refusal(job_text(folder, "init = 'hf'\n")) == "");
}

TEST_CASE("models that pptrain would compute otherwise than transformers are refused by key") {
  const Folder folder;
  const auto changed = [&](Json config, const char* key, const Json& value) {
    config[key] = value;
    return refused(folder, config);
  };
  REQUIRE(refused(folder, llama()) == "");
  CHECK_THAT(changed(llama(), "model_type", "falcon"),
             contains_text("model_type: \"falcon\" is not supported; supported: llama, qwen3"));
  CHECK_THAT(changed(llama(), "model_type", "llama4_text"),
             contains_text("\"llama4_text\" is not supported: pptrain lacks attention in chunks"));
  CHECK_THAT(changed(llama(), "hidden_act", "gelu"),
             contains_text("hidden_act: \"gelu\" is not supported; supported: silu"));
  CHECK_THAT(changed(llama(), "attention_dropout", 0.1),
             contains_text("attention_dropout: dropout is not supported"));
  CHECK_THAT(changed(qwen3(), "use_sliding_window", true), contains_text("use_sliding_window"));
  CHECK_THAT(changed(llama(), "quantization_config", {{"bits", 4}}), contains_text("quantization_config"));
  CHECK_THAT(changed(llama(), "rope_scaling", {{"rope_type", "ntk"}, {"factor", 2}}),
             contains_text("\"ntk\" is not supported"));
  CHECK_THAT(changed(llama(), "rope_scaling", {{"type", "linear"}, {"factor", 2.0}, {"mscale_all_dim", 0.7}}),
             contains_text("mscale_all_dim") && contains_text("is supported with yarn alone"));
  CHECK_THAT(changed(llama(), "rope_scaling", {{"type", "linear"}}),
             contains_text("rope_scaling: factor: is missing"));
  CHECK_THAT(changed(llama(), "rope_scaling", 3), contains_text("rope_scaling: 3 is not an object"));
  CHECK_THAT(changed(llama(), "hidden_size", "80"), contains_text("hidden_size: \"80\" is not a size"));
  CHECK_THAT(changed(llama(), "hidden_size", -80), contains_text("hidden_size: -80 is not a size"));
  CHECK_THAT(changed(llama(), "hidden_size", 1e30), contains_text("is not a size"));
  CHECK_THAT(changed(llama(), "vocab_size", nullptr), contains_text("vocab_size: is missing"));
  CHECK_THAT(changed(llama(), "rms_norm_eps", "x"), contains_text("rms_norm_eps: \"x\" is not a number"));
  CHECK_THAT(changed(llama(), "tie_word_embeddings", 1),
             contains_text("tie_word_embeddings: 1 is not true or false"));
  CHECK_THAT(changed(llama(), "rope_theta", 0), contains_text("rope_theta: 0 is not above 0"));
}

TEST_CASE("a directory without a sound config.json is laid at hf_dir, and nothing else is said") {
  const Folder folder;
  CHECK_THAT(refusal(job_text(folder, "")),
             StartsWith("job.toml:6:10: model.hf_dir: " + folder.path("hf/config.json") + " cannot be read"));
  for (const char* text : {"", "{", "[]", "{\"model_type\": \"llama\"", "\xff\xfe"}) {
    folder.write("hf/config.json", text);
    const std::string message = refusal(job_text(folder, "init = 'hf'\n"));
    CHECK_THAT(message, StartsWith("job.toml:6:10: model.hf_dir: "));
    CHECK(message.find('\n') == std::string::npos);
  }
  const std::string whole = llama().dump();
  for (size_t length = 0; length < whole.size(); length += 7) {
    folder.write("hf/config.json", whole.substr(0, length));
    CHECK_THAT(refusal(job_text(folder, "")), StartsWith("job.toml:6:10: model.hf_dir: "));
  }
}

TEST_CASE("a number of config.json has the range that it has in a job") {
  const Folder folder;
  const auto changed = [&](Json config, const char* key, const Json& value) {
    config[key] = value;
    return refused(folder, config);
  };
  const std::string file = folder.path("hf/config.json") + ": ";
  CHECK(changed(llama(), "rms_norm_eps", -1) ==
        file + "rms_norm_eps: -1 is out of range; allowed: 0 <= x <= 1");
  CHECK(changed(llama(), "initializer_range", -0.02) ==
        file + "initializer_range: -0.02 is out of range; allowed: 0 <= x <= 10");
  CHECK(changed(llama(), "hidden_size", (1 << 24) + 1) ==
        file + "hidden_size: 16777217 is out of range; allowed: 0 <= x <= 16777216");
  CHECK(changed(llama(), "num_hidden_layers", 65537) ==
        file + "num_hidden_layers: 65537 is out of range; allowed: 0 <= x <= 65536");
  Json rope = llama()["rope_scaling"];
  rope["factor"] = 0.5;
  CHECK(changed(llama(), "rope_scaling", rope) ==
        file + "rope_scaling: factor: 0.5 is out of range; allowed: >= 1");
  Json sparse = qwen3();
  sparse.update(
      Json::parse(R"({"model_type": "qwen3_moe", "num_experts": 16, "mlp_only_layers": [1, 65537]})"));
  CHECK(refused(folder, sparse) == file + "mlp_only_layers: 65537 is out of range; allowed: 0 <= x <= 65536");
  sparse["mlp_only_layers"] = {1};
  CHECK(changed(sparse, "num_local_experts", 4097) ==
        file + "num_local_experts: 4097 is out of range; allowed: 0 <= x <= 4096");
}

TEST_CASE("config.json is read strictly") {
  const Folder folder;
  const auto refused_text = [&](const std::string& text) {
    folder.write("hf/config.json", text);
    return refusal(job_text(folder, ""));
  };
  const std::string whole = llama().dump();
  CHECK(refused_text(whole) == "");
  CHECK_THAT(refused_text(whole + std::string("\0{\"hidden_size\": 8}", 19)), contains_text("is NUL"));
  CHECK_THAT(refused_text(whole + "{}"), contains_text("not valid JSON"));
  CHECK_THAT(refused_text("{\"hidden_size\": 96, " + whole.substr(1)),
             contains_text("the key 'hidden_size' is there twice"));
}

TEST_CASE("numbers of layers are integers from 0") {
  const Folder folder;
  for (const Json& value : {Json(1e30), Json(2.7), Json(-1), Json("2")}) {
    Json config = qwen3();
    config["model_type"] = "qwen2";
    config["architectures"] = {"Qwen2ForCausalLM"};
    config["use_sliding_window"] = true;
    config["sliding_window"] = 64;
    config["max_window_layers"] = value;
    CAPTURE(value.dump());
    CHECK_THAT(refused(folder, config),
               contains_text("max_window_layers") && contains_text("a number of layers"));
  }
}

TEST_CASE("what a rotary scaling leaves out is as in transformers") {
  const Folder folder;
  const auto read = [&](const Json& rope, int64_t positions) {
    Json config = qwen3();
    config["max_position_embeddings"] = positions;
    config["rope_scaling"] = rope;
    folder.write("hf/config.json", config.dump());
    return read_hf_config(folder.path("hf")).rope_scaling;
  };
  const auto yarn = [](double factor, int64_t original) {
    return RopeScaling{.rope_type = config::RopeType::yarn,
                       .factor = factor,
                       .original_max_position_embeddings = original,
                       .attention_factor = 0,
                       .beta_fast = 32,
                       .beta_slow = 1,
                       .mscale = 0,
                       .mscale_all_dim = 0,
                       .truncate = true};
  };
  Json rope = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  CHECK(read(rope, 131072) == yarn(4, 32768));
  rope.erase("factor");
  CHECK(read(rope, 98304) == yarn(3, 32768));
  CHECK(read(rope, 16384) == yarn(1, 32768));  // never below 1
  rope = {{"rope_type", "llama3"}, {"factor", 8.0}, {"original_max_position_embeddings", 4096}};
  CHECK(read(rope, 131072) == RopeScaling{config::RopeType::llama3, 8, 1, 4, 4096});
  Json equal = llama();
  equal["rope_scaling"]["high_freq_factor"] = 1.5;
  CHECK_THAT(refused(folder, equal), contains_text("high_freq_factor: is not above low_freq_factor"));
}
