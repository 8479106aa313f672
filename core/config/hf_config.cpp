#include "core/config/hf_config.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/error.h"

namespace pptrain::config {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::string_view, 2> model_types = {"llama", "qwen3"};

// One object of the file, and where it lies for messages. A key that is null counts as absent, as in
// transformers.
class Reader {
 public:
  Reader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  [[noreturn]] void fail(std::string_view key, const std::string& text) const {
    throw UsageError(fmt::format("{}: {}: {}", where_, key, text));
  }

  bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }

  int64_t size(const char* key) const {
    if (!has(key)) {
      fail(key, "is missing");
    }
    return size(key, 0);
  }

  int64_t size(const char* key, int64_t fallback) const {
    if (!has(key)) {
      return fallback;
    }
    const Json& value = object_.at(key);
    if (!value.is_number_integer() || value.get<double>() < 1 || value.get<double>() > (1 << 28)) {
      fail(key, fmt::format("{} is not a size: expected an integer from 1 to {}", value.dump(), 1 << 28));
    }
    return value.get<int64_t>();
  }

  double number(const char* key, double fallback) const {
    if (!has(key)) {
      return fallback;
    }
    if (!object_.at(key).is_number()) {
      fail(key, fmt::format("{} is not a number", object_.at(key).dump()));
    }
    return object_.at(key).get<double>();
  }

  double positive(const char* key, double fallback) const {
    const double value = number(key, fallback);
    if (!(value > 0)) {
      fail(key, fmt::format("{} is not above 0", value));
    }
    return value;
  }

  bool flag(const char* key, bool fallback) const {
    if (!has(key)) {
      return fallback;
    }
    if (!object_.at(key).is_boolean()) {
      fail(key, fmt::format("{} is not true or false", object_.at(key).dump()));
    }
    return object_.at(key).get<bool>();
  }

  std::string text(const char* key, const std::string& fallback) const {
    if (!has(key)) {
      return fallback;
    }
    if (!object_.at(key).is_string()) {
      fail(key, fmt::format("{} is not a string", object_.at(key).dump()));
    }
    return object_.at(key).get<std::string>();
  }

  Reader object(const char* key) const {
    if (!object_.at(key).is_object()) {
      fail(key, fmt::format("{} is not an object", object_.at(key).dump()));
    }
    return Reader(object_.at(key), fmt::format("{}: {}", where_, key));
  }

 private:
  const Json& object_;
  std::string where_;
};

Json read_json(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw UsageError(fmt::format("{} cannot be read: a Hugging Face directory has a config.json", path));
  }
  Json json = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    throw UsageError(fmt::format("{} is not a JSON object: is the file complete?", path));
  }
  return json;
}

// What transformers computes for these settings and pptrain does not.
void refuse_unsupported(const Reader& json) {
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

RopeScaling read_rope_scaling(const Reader& rope, int64_t max_position_embeddings) {
  RopeScaling scaling;
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  if (rope.number("partial_rotary_factor", 1) != 1) {
    rope.fail("partial_rotary_factor", "only 1 is supported: every dimension of a head is rotated");
  }
  if (type == "default") {
    return scaling;
  }
  if (type != "linear" && type != "llama3") {
    rope.fail("rope_type", fmt::format("\"{}\" is not supported; supported: default, linear, llama3", type));
  }
  scaling.rope_type = type;
  if (!rope.has("factor")) {
    rope.fail("factor", "is missing");
  }
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

void read_rope(const Reader& json, ModelSection& model) {
  model.rope_theta = json.positive("rope_theta", 10000);
  const char* key = json.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (json.has(key)) {
    const Reader rope = json.object(key);
    model.rope_theta = rope.positive("rope_theta", model.rope_theta);
    model.rope_scaling = read_rope_scaling(rope, model.max_position_embeddings);
  }
}

}  // namespace

ModelSection read_hf_config(const std::string& dir) {
  const std::string path = (std::filesystem::path(dir) / "config.json").string();
  const Json object = read_json(path);
  const Reader json(object, path);
  ModelSection model;
  model.arch = json.text("model_type", "");
  if (std::ranges::find(model_types, model.arch) == model_types.end()) {
    json.fail("model_type", fmt::format("\"{}\" is not supported; supported: {}", model.arch,
                                        fmt::join(model_types, ", ")));
  }
  const bool qwen3 = model.arch == "qwen3";
  refuse_unsupported(json);
  model.hidden_size = json.size("hidden_size");
  model.intermediate_size = json.size("intermediate_size");
  model.num_hidden_layers = json.size("num_hidden_layers");
  model.num_attention_heads = json.size("num_attention_heads");
  model.num_key_value_heads = json.size("num_key_value_heads", qwen3 ? 32 : model.num_attention_heads);
  model.head_dim = json.size(
      "head_dim", qwen3 ? 128 : std::max<int64_t>(1, model.hidden_size / model.num_attention_heads));
  model.vocab_size = json.size("vocab_size");
  model.max_position_embeddings = json.size("max_position_embeddings", qwen3 ? 32768 : 2048);
  model.rms_norm_eps = json.number("rms_norm_eps", 1e-6);
  model.initializer_range = json.number("initializer_range", 0.02);
  model.tie_word_embeddings = json.flag("tie_word_embeddings", false);
  model.attention_bias = json.flag("attention_bias", false);
  model.mlp_bias = !qwen3 && json.flag("mlp_bias", false);
  read_rope(json, model);
  return model;
}

std::span<const std::string> hf_fixed_options() {
  static const std::array<std::string, 11> names = {"model.arch",
                                                    "model.hidden_size",
                                                    "model.intermediate_size",
                                                    "model.num_hidden_layers",
                                                    "model.num_attention_heads",
                                                    "model.num_key_value_heads",
                                                    "model.head_dim",
                                                    "model.vocab_size",
                                                    "model.tie_word_embeddings",
                                                    "model.attention_bias",
                                                    "model.mlp_bias"};
  return names;
}

}  // namespace pptrain::config
