#include "models/hf_config.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "core/config/field.h"
#include "core/config/options.h"
#include "core/io/mapped_file.h"
#include "core/io/strict_json.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

using Json = nlohmann::json;

Json parse_json(std::string_view text, const std::string& path) {
  try {
    Json json = io::parse_strict_json(text, path);
    if (json.is_object()) return json;
  } catch (const Error& error) {
    throw UsageError(fmt::format("{}; is the file complete?", error.what()));
  }
  throw UsageError(fmt::format("{} is not a JSON object: is the file complete?", path));
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

// What the architectures have in common, but with other defaults.
void read_sizes(const HfJson& json, const Architecture& architecture, config::ModelSection& model) {
  const auto or_else = [](int64_t size, int64_t other) { return size > 0 ? size : other; };
  const int64_t heads = model.num_attention_heads;
  model.num_key_value_heads = json.size("num_key_value_heads", or_else(architecture.hf_kv_heads, heads));
  model.head_dim = json.size(
      "head_dim", or_else(architecture.hf_head_dim, std::max<int64_t>(1, model.hidden_size / heads)));
  model.max_position_embeddings = json.size("max_position_embeddings", architecture.hf_max_positions);
  if (architecture.has_attention_bias) model.attention_bias = json.flag("attention_bias", false);
  if (architecture.has_mlp_bias) model.mlp_bias = json.flag("mlp_bias", false);
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

// As in transformers: the factor in `rope` counts before one beside it.
void check_rotated_part(const HfJson& rope, const HfJson& json) {
  const bool inside = rope.has("partial_rotary_factor");
  const HfJson& where = inside ? rope : json;
  if (where.number("partial_rotary_factor", 1) != 1)
    where.fail("partial_rotary_factor", "only 1 is supported: every dimension of a head is rotated");
}

config::RopeScaling read_rope_scaling(const HfJson& rope, const HfJson& json,
                                      int64_t max_position_embeddings) {
  config::RopeScaling scaling;
  constexpr auto words = config::words<config::RopeType>;
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  const auto found = std::ranges::find(words, std::string_view(type));
  if (found == words.end()) {
    rope.fail("rope_type",
              fmt::format("\"{}\" is not supported; supported: {}", type, fmt::join(words, ", ")));
  }
  scaling.rope_type = static_cast<config::RopeType>(found - words.begin());
  if (scaling.rope_type == config::RopeType::none) return scaling;
  if (!rope.has("factor")) rope.fail("factor", "is missing");
  scaling.factor = rope.positive("factor", 1);
  if (scaling.rope_type == config::RopeType::llama3) {
    scaling.low_freq_factor = rope.positive("low_freq_factor", 1);
    scaling.high_freq_factor = rope.positive("high_freq_factor", 4);
    constexpr const char* original = "original_max_position_embeddings";  // beside `rope` before in it
    scaling.original_max_position_embeddings =
        json.size(original, rope.size(original, max_position_embeddings));
    if (scaling.high_freq_factor <= scaling.low_freq_factor) {
      rope.fail("high_freq_factor", "is not above low_freq_factor");
    }
  }
  return scaling;
}

// Where both are there, transformers takes the older one, unless it is empty.
const char* rope_key(const HfJson& json) {
  return json.is_filled("rope_scaling") ? "rope_scaling" : "rope_parameters";
}

// model.rope_theta is the architecture's default.
void read_rope(const HfJson& json, config::ModelSection& model) {
  model.rope_theta = json.positive("rope_theta", model.rope_theta);
  const char* key = rope_key(json);
  if (!json.has(key)) return check_rotated_part(json, json);
  const HfJson rope = json.object(key);
  check_rotated_part(rope, json);
  model.rope_theta = rope.positive("rope_theta", model.rope_theta);
  model.rope_scaling = read_rope_scaling(rope, json, model.max_position_embeddings);
}

// The key of config.json that an option of [model] is read from.
std::string key_of(const HfJson& json, const config::Option& option) {
  if (option.key == "num_experts" && json.has("num_local_experts")) return "num_local_experts";
  const char* rope = rope_key(json);
  const bool moved = option.key == "rope_theta" && json.has(rope) && json.object(rope).has("rope_theta");
  return moved || option.section == "model.rope_scaling" ? fmt::format("{}: {}", rope, option.key)
                                                         : option.key;
}

// A number of config.json has the range that it would have in a job.
void check_ranges(const HfJson& json, const config::ModelSection& model) {
  config::JobConfig job;
  job.model = model;
  for (const config::Option& option : config::options()) {
    if (option.section != "model" && option.section != "model.rope_scaling") continue;
    if (const std::string fault = config::range_fault(option, job); !fault.empty())
      json.fail(key_of(json, option), fault);
  }
}

using OrderedJson = nlohmann::ordered_json;

OrderedJson rope_scaling(const config::RopeScaling& scaling) {
  if (scaling.rope_type == config::RopeType::none) return nullptr;
  OrderedJson json = {{"rope_type", scaling.rope_type.text}, {"factor", scaling.factor}};
  if (scaling.rope_type != config::RopeType::llama3) return json;
  json["low_freq_factor"] = scaling.low_freq_factor;
  json["high_freq_factor"] = scaling.high_freq_factor;
  json["original_max_position_embeddings"] = scaling.original_max_position_embeddings;
  return json;
}

// null where it is not known: left out, it would be transformers' default for the architecture.
OrderedJson token(const std::optional<int32_t>& id) {
  return id ? OrderedJson(*id) : OrderedJson(nullptr);
}

std::string dtype_text(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    default:
      throw Error(fmt::format("weights are not stored as {}", c10::toString(dtype)));
  }
}

}  // namespace

void HfJson::fail(std::string_view key, const std::string& text) const {
  throw UsageError(fmt::format("{}: {}: {}", where_, key, text));
}

void HfJson::wrong(const char* key, std::string_view expected) const {
  fail(key, fmt::format("{} is not {}", object_.at(key).dump(), expected));
}

bool HfJson::has(const char* key) const {
  return object_.contains(key) && !object_.at(key).is_null();
}

bool HfJson::is_null(const char* key) const {
  return object_.contains(key) && object_.at(key).is_null();
}

bool HfJson::is_filled(const char* key) const {
  return has(key) && !object_.at(key).empty();
}

int64_t HfJson::size(const char* key) const {
  if (!has(key)) fail(key, "is missing");
  return size(key, 0);
}

int64_t HfJson::size(const char* key, int64_t fallback) const {
  constexpr int64_t largest = 1 << 28;
  if (!has(key)) return fallback;
  const nlohmann::json& value = object_.at(key);
  if (!value.is_number_integer() || value.get<double>() < 1 || value.get<double>() > largest) {
    wrong(key, fmt::format("a size: expected an integer from 1 to {}", largest));
  }
  return value.get<int64_t>();
}

double HfJson::number(const char* key, double fallback) const {
  if (!has(key)) return fallback;
  if (!object_.at(key).is_number()) wrong(key, "a number");
  return object_.at(key).get<double>();
}

double HfJson::positive(const char* key, double fallback) const {
  const double value = number(key, fallback);
  if (!(value > 0)) fail(key, fmt::format("{} is not above 0", value));
  return value;
}

bool HfJson::flag(const char* key, bool fallback) const {
  if (!has(key)) return fallback;
  if (!object_.at(key).is_boolean()) wrong(key, "true or false");
  return object_.at(key).get<bool>();
}

std::vector<int64_t> HfJson::integers(const char* key) const {
  std::vector<int64_t> result;
  if (!has(key)) return result;
  const nlohmann::json& list = object_.at(key);
  if (!list.is_array()) wrong(key, "a list of integers");
  for (const nlohmann::json& value : list) {
    constexpr int64_t largest = 1 << 28;
    if (!value.is_number_integer() || value.get<double>() < 0 || value.get<double>() > largest)
      wrong(key, fmt::format("a list of integers from 0 to {}", largest));
    result.push_back(value.get<int64_t>());
  }
  return result;
}

std::string HfJson::text(const char* key, const std::string& fallback) const {
  if (!has(key)) return fallback;
  if (!object_.at(key).is_string()) wrong(key, "a string");
  return object_.at(key).get<std::string>();
}

HfJson HfJson::object(const char* key) const {
  if (!has(key)) fail(key, "is missing");
  if (!object_.at(key).is_object()) wrong(key, "an object");
  return HfJson(object_.at(key), fmt::format("{}: {}", where_, key));
}

config::ModelSection read_hf_config(const std::string& dir) {
  const std::string path = (std::filesystem::path(dir) / "config.json").string();
  std::error_code error;
  if (!std::filesystem::exists(path, error))
    throw UsageError(fmt::format("{} cannot be read: a Hugging Face directory has a config.json", path));
  try {
    const io::MappedFile file(path);
    return parse_hf_config({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path);
  } catch (const UsageError&) {
    throw;
  } catch (const Error& unreadable) {
    throw UsageError(unreadable.what());
  }
}

config::ModelSection parse_hf_config(std::string_view text, const std::string& path) {
  const Json object = parse_json(text, path);
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
  read_sizes(json, architecture, model);
  if (architecture.read_hf != nullptr) architecture.read_hf(json, model);
  // Missing, it is the architecture's default; null, it is this for all of them.
  if (json.is_null("num_key_value_heads")) model.num_key_value_heads = model.num_attention_heads;
  read_rope(json, model);
  check_ranges(json, model);
  return model;
}

OrderedJson hf_config(const config::ModelSection& model, at::ScalarType dtype, const TextEnds& ends) {
  const Architecture& architecture = find_architecture(model.arch);
  OrderedJson json = {
      {"architectures", {architecture.hf_class}},
      {"attention_dropout", 0.0},
      {"bos_token_id", token(ends.bos)},
      {"dtype", dtype_text(dtype)},
      {"eos_token_id", token(ends.eos)},
      {"head_dim", model.head_dim},
      {"hidden_act", "silu"},
      {"hidden_size", model.hidden_size},
      {"initializer_range", model.initializer_range},
      {"intermediate_size", model.intermediate_size},
      {"max_position_embeddings", model.max_position_embeddings},
      {"model_type", architecture.hf_model_type},
      {"num_attention_heads", model.num_attention_heads},
      {"num_hidden_layers", model.num_hidden_layers},
      {"num_key_value_heads", model.num_key_value_heads},
      {"rms_norm_eps", model.rms_norm_eps},
      {"rope_scaling", rope_scaling(model.rope_scaling)},
      {"rope_theta", model.rope_theta},
      {"tie_word_embeddings", model.tie_word_embeddings},
      {"torch_dtype", dtype_text(dtype)},  // as transformers called it up to 4.55
      {"use_cache", true},
      {"vocab_size", model.vocab_size},
  };
  if (architecture.has_attention_bias) json["attention_bias"] = model.attention_bias;
  if (architecture.has_mlp_bias) json["mlp_bias"] = model.mlp_bias;
  if (architecture.write_hf != nullptr) architecture.write_hf(model, json);
  return json;
}

}  // namespace pptrain::models
