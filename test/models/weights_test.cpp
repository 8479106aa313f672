// Names and tensors from a Hugging Face directory.
#include <c10/core/InferenceMode.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/io/safetensors.h"
#include "models/hf_directory.h"
#include "models/registry.h"
#include "models/weight_map.h"
#include "test/core/kernels/compare.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"
#include "test/support/ops.h"
#include "test/support/write_safetensors.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;

namespace {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "pptrain_weights_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

constexpr std::span<const models::WeightName> names = models::decoder_weights;

using Tensors = std::map<std::string, Tensor>;

// A model's tensors under Hugging Face's names, in turn as float32, bfloat16 and float16.
Tensors stored_tensors(const models::ModelConfig& model) {
  Stages whole = build_stages(model, {model.layers}, at::kFloat);
  const at::ScalarType types[] = {at::kFloat, at::kBFloat16, at::kHalf};
  Tensors tensors;
  size_t i = 0;
  for (const nn::Slice* p : whole[0]->parameters().slices()) {
    if (model.tied && p->spec.name == "head.weight") continue;
    tensors[models::hf_name(names, p->spec.name)] = p->master.to(types[i++ % 3]).clone();
  }
  return tensors;
}

void write(const TemporaryFolder& folder, const Tensors& tensors) {
  const auto file = folder.path() / "model.safetensors";
  std::filesystem::remove(file);
  write_safetensors(file, {tensors.begin(), tensors.end()});
}

void load_weights(models::TransformerStage& stage, const std::filesystem::path& hf_dir) {
  models::HfDirectory(stage.model(), hf_dir).load(stage);
}

}  // namespace

TEST_CASE("names go to Hugging Face's and back") {
  const std::pair<std::string, std::string> pairs[] = {
      {"embed.weight", "model.embed_tokens.weight"},
      {"norm.weight", "model.norm.weight"},
      {"head.weight", "lm_head.weight"},
      {"layers.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"},
      {"layers.17.attn.q.weight", "model.layers.17.self_attn.q_proj.weight"},
      {"layers.17.attn.k.bias", "model.layers.17.self_attn.k_proj.bias"},
      {"layers.1.attn.v.weight", "model.layers.1.self_attn.v_proj.weight"},
      {"layers.1.attn.o.weight", "model.layers.1.self_attn.o_proj.weight"},
      {"layers.1.attn.q_norm.weight", "model.layers.1.self_attn.q_norm.weight"},
      {"layers.1.attn.k_norm.weight", "model.layers.1.self_attn.k_norm.weight"},
      {"layers.123.mlp_norm.weight", "model.layers.123.post_attention_layernorm.weight"},
      {"layers.2.mlp.gate.weight", "model.layers.2.mlp.gate_proj.weight"},
      {"layers.2.mlp.up.bias", "model.layers.2.mlp.up_proj.bias"},
      {"layers.2.mlp.down.weight", "model.layers.2.mlp.down_proj.weight"},
  };
  for (const auto& [global, hf] : pairs) {
    CHECK(models::hf_name(names, global) == hf);
    CHECK(models::global_name(names, hf) == global);
  }
  CHECK(!models::global_name(names, "model.layers.0.self_attn.rotary_emb.inv_freq"));
  for (const char* wrong : {"layers.x.attn.q.weight", "layers.1", "layers.1.attn.q", "layers.1.attn.z.weight",
                            "head", "layers.1.attn.q.scale", "layers.", ""}) {
    CHECK_THROWS_AS(models::hf_name(names, wrong), Error);
  }
}

TEST_CASE("names of experts have two numbers, and their fused tensors one") {
  const auto qwen = models::find_architecture("qwen3_moe").weights;
  const auto mixtral = models::find_architecture("mixtral").weights;
  const std::string up = "layers.3.mlp.experts.17.up.weight", router = "layers.12.mlp.router.weight";
  CHECK(models::hf_name(qwen, up) == "model.layers.3.mlp.experts.17.up_proj.weight");
  CHECK(models::hf_name(mixtral, up) == "model.layers.3.block_sparse_moe.experts.17.w3.weight");
  CHECK(models::global_name(qwen, "model.layers.3.mlp.experts.17.up_proj.weight") == up);
  CHECK(models::global_name(mixtral, "model.layers.3.block_sparse_moe.experts.17.w3.weight") == up);
  CHECK(models::hf_name(qwen, router) == "model.layers.12.mlp.gate.weight");
  const auto tensors_of = [](std::span<const models::WeightName> list, const std::string& name) {
    const nn::ParameterSpec spec{.name = name, .shape = {4, 4}};
    return models::WeightMap(list, {&spec}, false, 1).tensors_of(name);
  };
  CHECK(tensors_of(mixtral, router) ==
        std::vector<std::string>{"model.layers.12.block_sparse_moe.gate.weight",
                                 "model.layers.12.mlp.gate.weight"});
  CHECK(models::hf_name(qwen, "layers.3.mlp.up.weight") == "model.layers.3.mlp.up_proj.weight");
  CHECK(tensors_of(qwen, up).back() == "model.layers.3.mlp.experts.gate_up_proj");
  CHECK(!models::global_name(qwen, "model.layers.3.mlp.experts.gate_up_proj"));
}

// GPT-NeoX's and GPT-2's layouts, spelled out for 2 heads of 2 rows each, and 3 columns.
TEST_CASE("parameters that share a tensor lie in it as its layout says") {
  constexpr models::WeightName layouts[] = {
      {"layers.*.attn.q", "h.*.qkv", models::Rows::of_head},
      {"layers.*.attn.k", "h.*.qkv", models::Rows::of_head},
      {"layers.*.attn.v", "h.*.qkv", models::Rows::of_head},
      {"layers.*.mlp.gate", "h.*.gate_up", models::Rows::of_parameter, /*transposed=*/true},
      {"layers.*.mlp.up", "h.*.gate_up", models::Rows::of_parameter, /*transposed=*/true},
  };
  std::vector<nn::ParameterSpec> specs;
  for (const char* module : {"attn.q", "attn.k", "attn.v", "mlp.gate", "mlp.up"}) {
    const std::string name = std::string("layers.1.") + module;
    specs.push_back({.name = name + ".weight", .shape = {4, 3}});
    specs.push_back({.name = name + ".bias", .shape = {4}, .role = nn::Role::bias});
  }
  std::vector<const nn::ParameterSpec*> pointers;
  for (const nn::ParameterSpec& spec : specs) pointers.push_back(&spec);
  const models::WeightMap map(layouts, pointers, false, 2);
  const auto rows = [&](const std::string& parameter, const Tensor& tensor, int64_t begin, int64_t end) {
    return map.place(parameter, map.tensors_of(parameter).front()).rows_of(tensor, begin, end);
  };
  CHECK(map.find("h.1.qkv.weight")->shape == std::vector<int64_t>{12, 3});
  CHECK(map.find("h.1.gate_up.weight")->shape == std::vector<int64_t>{3, 8});
  CHECK(map.find("h.1.gate_up.bias")->shape == std::vector<int64_t>{8});
  const Tensor qkv = at::arange(36).view({12, 3}), bias = at::arange(12);
  const Tensor k_rows = at::tensor({2, 3, 8, 9}, at::kLong);
  CHECK(rows("layers.1.attn.k.weight", qkv, 0, 4).equal(qkv.index_select(0, k_rows)));
  CHECK(rows("layers.1.attn.k.weight", qkv, 1, 3).equal(qkv.index_select(0, k_rows).narrow(0, 1, 2)));
  CHECK(rows("layers.1.attn.k.bias", bias, 2, 4).view({-1}).equal(at::tensor({8, 9}, at::kLong)));
  const Tensor both = at::arange(24).view({3, 8});
  CHECK(rows("layers.1.mlp.up.weight", both, 1, 4).equal(both.narrow(1, 5, 3).t()));
  CHECK(rows("layers.1.mlp.up.bias", at::arange(8), 0, 4).view({-1}).equal(at::arange(4, 8)));

  // A slice of rows [1, 4) and columns [1, 3): its elements from the second to the fifth.
  const nn::SliceShape slice{.global = {4, 3}, .offset = {1, 1}, .box = {3, 2}, .begin = 1, .end = 5};
  for (const char* name : {"layers.1.attn.v.weight", "layers.1.mlp.gate.weight"}) {
    INFO(name);
    const models::HfWeight weight = map.place(name, map.tensors_of(name).front());
    const Tensor tensor = weight.bands > 1 ? qkv : both;
    Tensor out = at::empty({4});
    models::copy_slice(weight, tensor, slice, out);
    const Tensor box = weight.rows_of(tensor, 0, 4).narrow(0, 1, 3).narrow(1, 1, 2);
    CHECK(out.equal(box.reshape({-1}).narrow(0, 1, 4).to(at::kFloat)));
  }
}

TEST_CASE("a stage takes its own tensors of a directory, of any floating-point type") {
  const c10::InferenceMode inference;
  const std::string arch = GENERATE(as<std::string>{}, "llama", "qwen3");
  const bool tied = GENERATE(false, true);
  const auto model = small_model(arch, tied);
  const TemporaryFolder folder;
  const Tensors tensors = stored_tensors(model);
  CHECK(tensors.contains("lm_head.weight") == !tied);
  write(folder, tensors);
  Stages stages = build_stages(model, {1, 2, 1}, at::kBFloat16, 99);
  for (auto& stage : stages) {
    load_weights(*stage, folder.path());
    for (const nn::Slice* p : stage->parameters().slices()) {
      INFO(p->spec.name);
      const std::string stored = tied && p->spec.name == "head.weight" ? "embed.weight" : p->spec.name;
      const Tensor expected = tensors.at(models::hf_name(names, stored)).to(at::kFloat);
      CHECK(same_bits(p->master, expected));
      CHECK(p->compute.scalar_type() == (p->spec.role == nn::Role::norm ? at::kFloat : at::kBFloat16));
      CHECK(same_bits(p->compute, expected.to(p->compute.scalar_type())));
    }
  }
}

TEST_CASE("a stage reads nothing of the others") {
  const c10::InferenceMode inference;
  const auto model = small_model("llama", false);
  const TemporaryFolder folder;
  Tensors tensors = stored_tensors(model);
  // Stage 1 of {1, 2, 1} has layers 1 and 2 alone.
  std::erase_if(tensors, [](const auto& entry) {
    return !entry.first.starts_with("model.layers.1.") && !entry.first.starts_with("model.layers.2.");
  });
  write(folder, tensors);
  Stages stages = build_stages(model, {1, 2, 1}, at::kFloat, 99);
  load_weights(*stages[1], folder.path());
  CHECK(error_of([&] { load_weights(*stages[2], folder.path()); }).find("model.layers.3.") !=
        std::string::npos);
}

TEST_CASE("weights that do not fit are refused by name") {
  const c10::InferenceMode inference;
  const auto model = small_model("llama", false);
  const TemporaryFolder folder;
  const Tensors sound = stored_tensors(model);
  Stages stages = build_stages(model, {4}, at::kFloat, 99);
  const auto load = [&](const Tensors& tensors) {
    write(folder, tensors);
    return error_of([&] { load_weights(*stages[0], folder.path()); });
  };
  CHECK(load(sound) == "no error");

  Tensors tensors = sound;
  tensors["model.layers.2.mlp.up_proj.weight"] = at::zeros({40, 56});
  CHECK(load(tensors) == folder.path().string() +
                             ": tensor model.layers.2.mlp.up_proj.weight has shape [40, 56], but "
                             "layers.2.mlp.up.weight of this model has [56, 40]");
  tensors = sound;
  tensors["model.norm.weight"] = at::ones({40}, at::kLong);
  CHECK(load(tensors).find("model.norm.weight does not hold floating-point numbers") != std::string::npos);
  tensors = sound;
  tensors.erase("lm_head.weight");
  CHECK(load(tensors).find("lm_head.weight") != std::string::npos);
  tensors = sound;
  tensors["model.layers.1.self_attn.q_norm.weight"] = at::ones({16});
  CHECK(load(tensors).find("model.layers.1.self_attn.q_norm.weight has no place in this llama model") !=
        std::string::npos);
  tensors = sound;
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = at::ones({8});
  CHECK(load(tensors) == "no error");
}

// The list in hf_directory.cpp: the handling of a tensor that no parameter takes.
TEST_CASE("tensors that no parameter takes are ignored, noted or refused") {
  const c10::InferenceMode inference;
  const auto model = small_model("llama", false);
  const TemporaryFolder folder;
  const Tensors sound = stored_tensors(model);
  const auto open = [&](const std::string& name, at::ScalarType type = at::kFloat) {
    Tensors tensors = sound;
    tensors[name] = at::zeros({8}, type);
    write(folder, tensors);
    return models::HfDirectory(model, folder.path());
  };
  for (const char* name :
       {"model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.3.attention.masked_bias",
        "model.rotary_emb.inv_freq", "h.0.attn.bias"}) {
    INFO(name);
    const models::HfDirectory directory = open(name);
    CHECK(directory.others() == std::vector<std::string>{name});
    CHECK(directory.notes().empty());
    CHECK(directory.warnings().empty());
  }
  for (const char* name :
       {"v_head.summary.weight", "score.weight", "vision_tower.layers.0.self_attn.q_proj.weight"}) {
    INFO(name);
    const models::HfDirectory directory = open(name, at::kLong);
    CHECK(directory.others() == std::vector<std::string>{name});
    REQUIRE(directory.notes().size() == 1);
    CHECK_THAT(directory.notes().front(),
               contains_text("1 tensor (" + std::string(name) + ") that this model"));
  }
  const std::map<std::string, std::string> refused = {
      {"model.layers.0.self_attn.q_proj.weight_scale_inv", "is of quantized weights"},
      {"model.layers.0.mlp.up_proj.qweight", "is of quantized weights"},
      {"model.layers.0.mlp.experts.gate_up_proj_blocks", "is of quantized weights"},
      {"model.layers.1.self_attn.q_norm.weight", "has no place in this llama model"},
      {"model.layers.1.self_attn.new_module.weight", "has no place in this llama model"},
      {"model.layers.4.self_attn.q_proj.weight", "is of layer 4, but this model has 4"},
      {"lm_head.bias", "has no place in this llama model"},
      {"model.norm.bias", "has no place in this llama model"}};
  for (const auto& [name, message] : refused) {
    CHECK_THAT(error_of([&, &key = name] { open(key); }), contains_text("tensor " + name + " " + message));
  }
}

TEST_CASE("only types that float32 holds are read") {
  const c10::InferenceMode inference;
  const auto model = small_model("llama", false);
  const TemporaryFolder folder;
  for (const auto& [type, word] : {std::pair(at::kDouble, "F64"), std::pair(at::kFloat8_e4m3fn, "F8_E4M3"),
                                   std::pair(at::kLong, "floating")}) {
    Tensors tensors = stored_tensors(model);
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(type);
    write(folder, tensors);
    const models::HfDirectory directory(model, folder.path());
    CHECK_THAT(error_of([&] { directory.find("norm.weight"); }),
               contains_text("tensor model.norm.weight") && contains_text(word));
  }
}

// A base model's names lack "model."; the text models of models with images have more.
TEST_CASE("names of a directory may begin otherwise") {
  const c10::InferenceMode inference;
  const auto model = small_model("qwen3", false);
  const Tensors sound = stored_tensors(model);
  const std::map<std::string, std::string> beginnings = {
      {"", ""}, {"language_model.model.", "language_model."}, {"model.language_model.", ""}};
  for (const auto& [before, of_head] : beginnings) {
    INFO(before);
    Tensors tensors;
    for (const auto& [name, tensor] : sound) {
      const bool is_head = name == "lm_head.weight";
      tensors[is_head ? of_head + name : before + name.substr(std::string("model.").size())] = tensor;
    }
    tensors[before + "layers.0.self_attn.rotary_emb.inv_freq"] = at::ones({8});
    tensors["model.vision_tower.embed.weight"] = at::ones({8});
    const TemporaryFolder folder;
    write(folder, tensors);
    Stages stages = build_stages(model, {4}, at::kFloat, 99);
    load_weights(*stages[0], folder.path());
    for (const nn::Slice* p : stages[0]->parameters().slices())
      CHECK(same_bits(p->master, sound.at(models::hf_name(names, p->spec.name)).to(at::kFloat)));
    tensors[before + "layers.0.mlp.up_proj.bias"] = at::ones({8});
    write(folder, tensors);
    CHECK_THAT(error_of([&] { load_weights(*stages[0], folder.path()); }),
               contains_text("tensor " + before + "layers.0.mlp.up_proj.bias has no place"));
  }
}

TEST_CASE("a base model without a head serves a tied model alone") {
  const c10::InferenceMode inference;
  for (const bool tied : {true, false}) {
    const auto model = small_model("llama", tied);
    Tensors tensors;
    for (const auto& [name, tensor] : stored_tensors(model))
      if (name != "lm_head.weight") tensors[name.substr(std::string("model.").size())] = tensor;
    const TemporaryFolder folder;
    write(folder, tensors);
    const models::HfDirectory directory(model, folder.path());
    CHECK(directory.find("embed.weight").tensor == "embed_tokens.weight");
    const std::string fault = error_of([&] { directory.find_all(); });
    CHECK(fault == (tied ? "no error"
                         : "the Hugging Face directory '" + folder.path().string() +
                               "' has no tensor 'lm_head.weight'"));
  }
}

TEST_CASE("a head beside the embedding of a tied model must be the embedding") {
  const c10::InferenceMode inference;
  const auto model = small_model("llama", true);
  const TemporaryFolder folder;
  Tensors tensors = stored_tensors(model);
  tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight").clone();
  write(folder, tensors);
  const models::HfDirectory same(model, folder.path());
  CHECK(same.others().empty());
  CHECK(same.find("head.weight").tensor == "model.embed_tokens.weight");
  tensors["lm_head.weight"].view({-1})[7] += 1;
  write(folder, tensors);
  CHECK_THAT(error_of([&] { models::HfDirectory(model, folder.path()); }),
             contains_text("tensor lm_head.weight is not model.embed_tokens.weight, but this model has one"));
  // The head alone also gives the embedding.
  tensors.erase("model.embed_tokens.weight");
  write(folder, tensors);
  CHECK(models::HfDirectory(model, folder.path()).find("embed.weight").tensor == "lm_head.weight");
}

TEST_CASE("a parameter that lies in two tensors is refused") {
  const c10::InferenceMode inference;
  const auto model = small_model("qwen3_moe", false);
  const TemporaryFolder folder;
  Tensors tensors;
  for (const models::HfTensor& tensor : models::hf_tensors(model))
    tensors[tensor.name] = at::zeros(tensor.shape);
  const auto& sparse = model.sparse;
  tensors["model.layers.2.mlp.experts.down_proj"] =
      at::zeros({sparse.experts, model.hidden, sparse.intermediate});
  write(folder, tensors);
  CHECK_THAT(error_of([&] { models::HfDirectory(model, folder.path()); }),
             contains_text("tensor model.layers.2.mlp.experts.") && contains_text("holds too"));
}

// If a file has more layers than the model, the first ones would be trained without a message.
TEST_CASE("weights of layers that the model does not have are refused") {
  const c10::InferenceMode inference;
  const TemporaryFolder folder;
  models::ModelConfig model = small_model("llama", false);
  Tensors tensors = stored_tensors(model);
  write(folder, tensors);
  --model.layers;
  Stages shorter = build_stages(model, {1, model.layers - 1}, at::kFloat, 99);
  for (const auto& stage : shorter) {
    CHECK_THAT(
        error_of([&] { load_weights(*stage, folder.path()); }),
        contains_text(".weight is of layer 3, but this model has 3 (num_hidden_layers), counted from 0"));
  }
  std::erase_if(tensors, [](const auto& entry) { return entry.first.starts_with("model.layers.3."); });
  tensors["model.layers.99999999999999999999.self_attn.q_proj.weight"] = at::ones({8});
  write(folder, tensors);
  CHECK_THAT(
      error_of([&] { load_weights(*shorter[0], folder.path()); }),
      contains_text("model.layers.99999999999999999999.self_attn.q_proj.weight is of layer 2147483647"));
}

TEST_CASE("a long head that differs from the embedding in its last number is a head of its own") {
  const c10::InferenceMode inference;
  models::ModelConfig model = small_model("llama", true);
  model.vocab = 27'000;  // 27,000 x 40 is more than 2^20, which are compared at a time
  const TemporaryFolder folder;
  Tensors tensors;
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"})
    tensors[name] = at::zeros({model.vocab, model.hidden});
  write(folder, tensors);
  CHECK_NOTHROW(models::HfDirectory(model, folder.path()));
  tensors["lm_head.weight"].view({-1})[model.vocab * model.hidden - 1] = 1;
  write(folder, tensors);
  CHECK_THAT(error_of([&] { models::HfDirectory(model, folder.path()); }),
             contains_text("lm_head.weight is not model.embed_tokens.weight"));
}

TEST_CASE("as many layers behind the model's are left out as config.json counts for prediction") {
  const c10::InferenceMode inference;
  const auto model = small_model("llama", true);
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "config.json") << R"({"num_nextn_predict_layers": 1})";
  Tensors tensors = stored_tensors(model);
  tensors["model.layers.4.eh_proj.weight"] = at::zeros({8});
  write(folder, tensors);
  const models::HfDirectory directory(model, folder.path());
  CHECK(directory.others() == std::vector<std::string>{"model.layers.4.eh_proj.weight"});
  REQUIRE(directory.notes().size() == 1);
  CHECK_THAT(directory.notes()[0], contains_text("multi-token prediction"));
  tensors["model.layers.5.eh_proj.weight"] = at::zeros({8});
  write(folder, tensors);
  CHECK_THAT(error_of([&] { models::HfDirectory(model, folder.path()); }),
             contains_text("is of layer 5, but this model has 4"));
}
