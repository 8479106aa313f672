#include "models/hf_config.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/special_file.h"
#include "models/hf_json.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

using Json = nlohmann::json;

Json read_json(const std::string& path) {
  std::ifstream file;
  if (special_file(path).empty()) file.open(path, std::ios::binary);
  if (!file.is_open()) {
    throw UsageError(fmt::format("{} cannot be read: a Hugging Face directory has a config.json", path));
  }
  Json json = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    throw UsageError(fmt::format("{} is not a JSON object: is the file complete?", path));
  }
  return json;
}

const Architecture& architecture_of(const HfJson& json) {
  const std::string model_type = json.text("model_type", "");
  std::vector<std::string_view> supported;
  for (const Architecture* architecture : architectures) {
    if (architecture->hf_model_type == model_type) return *architecture;
    supported.push_back(architecture->hf_model_type);
  }
  json.fail("model_type",
            fmt::format("\"{}\" is not supported; supported: {}", model_type, fmt::join(supported, ", ")));
}

// What transformers computes for these settings and pptrain does not.
void refuse_unsupported(const HfJson& json) {
  if (const std::string activation = json.text("hidden_act", "silu"); activation != "silu") {
    json.fail("hidden_act", fmt::format("\"{}\" is not supported; supported: silu", activation));
  }
  if (json.number("attention_dropout", 0) != 0) {
    json.fail("attention_dropout", "dropout is not supported; set it to 0");
  }
  if (json.flag("use_sliding_window", false)) {
    json.fail("use_sliding_window", "sliding-window attention is not supported");
  }
  if (json.has("quantization_config")) {
    json.fail("quantization_config",
              "quantized weights are not supported; take the model's bf16 or fp32 version");
  }
}

config::RopeScaling read_rope_scaling(const HfJson& rope, int64_t max_position_embeddings) {
  config::RopeScaling scaling;
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  if (rope.number("partial_rotary_factor", 1) != 1) {
    rope.fail("partial_rotary_factor", "only 1 is supported: every dimension of a head is rotated");
  }
  if (type == "default") return scaling;
  if (type != "linear" && type != "llama3") {
    rope.fail("rope_type", fmt::format("\"{}\" is not supported; supported: default, linear, llama3", type));
  }
  scaling.rope_type = type;
  if (!rope.has("factor")) rope.fail("factor", "is missing");
  scaling.factor = rope.positive("factor", 1);
  if (type == "llama3") {
    scaling.low_freq_factor = rope.positive("low_freq_factor", 1);
    scaling.high_freq_factor = rope.positive("high_freq_factor", 4);
    scaling.original_max_position_embeddings =
        rope.size("original_max_position_embeddings", max_position_embeddings);
    if (scaling.high_freq_factor <= scaling.low_freq_factor) {
      rope.fail("high_freq_factor", "is not above low_freq_factor");
    }
  }
  return scaling;
}

void read_rope(const HfJson& json, config::ModelSection& model) {
  model.rope_theta = json.positive("rope_theta", 10000);
  const char* key = json.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!json.has(key)) return;
  const HfJson rope = json.object(key);
  model.rope_theta = rope.positive("rope_theta", model.rope_theta);
  model.rope_scaling = read_rope_scaling(rope, model.max_position_embeddings);
}

}  // namespace

config::ModelSection read_hf_config(const std::string& dir) {
  const std::string path = (std::filesystem::path(dir) / "config.json").string();
  const Json object = read_json(path);
  const HfJson json(object, path);
  const Architecture& architecture = architecture_of(json);
  refuse_unsupported(json);
  config::ModelSection model;
  model.arch = architecture.name;
  model.hidden_size = json.size("hidden_size");
  model.intermediate_size = json.size("intermediate_size");
  model.num_hidden_layers = json.size("num_hidden_layers");
  model.num_attention_heads = json.size("num_attention_heads");
  model.vocab_size = json.size("vocab_size");
  model.rms_norm_eps = json.number("rms_norm_eps", 1e-6);
  model.initializer_range = json.number("initializer_range", 0.02);
  model.tie_word_embeddings = json.flag("tie_word_embeddings", false);
  architecture.read_hf(json, model);
  read_rope(json, model);
  return model;
}

}  // namespace pptrain::models
