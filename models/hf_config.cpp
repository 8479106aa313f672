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

constexpr int64_t largest_size = 1 << 28;

Json parse_json(std::string_view text, const std::string& path) {
  try {
    Json json = io::parse_strict_json(text, path);
    if (json.is_object()) return json;
  } catch (const Error& error) {
    throw UsageError(fmt::format("{}; is the file complete?", error.what()));
  }
  throw UsageError(fmt::format("{} is not a JSON object: is the file complete?", path));
}

// What pptrain lacks for decoders that transformers has.
struct Missing {
  std::string_view model_type, lacks;
};
constexpr Missing missing_families[] = {
    {"gemma3", "images; the text model alone is gemma3_text (its text_config)"},
    {"llama4", "images, attention in chunks and scores scaled by position"},
    {"llama4_text",
     "attention in chunks, scores scaled by position, and a router that scales an expert's input"},
    {"mamba", "state-space layers"},
    {"mistral3", "images; the text model alone is mistral (its text_config)"},
    {"qwen3_next", "linear attention and gates on attention"},
};

std::string why_not(std::string_view model_type) {
  const auto* const found = std::ranges::find(missing_families, model_type, &Missing::model_type);
  return found == std::end(missing_families) ? "" : fmt::format(": pptrain lacks {}", found->lacks);
}

const Architecture& architecture_of(const HfJson& json) {
  const std::string model_type = json.text("model_type", "");
  const auto* const found = std::ranges::find(architectures, model_type, &Architecture::name);
  if (found != std::end(architectures)) return **found;
  json.fail("model_type", fmt::format("\"{}\" is not supported{}; supported: {}", model_type,
                                      why_not(model_type), architecture_names(", ")));
}

using M = config::ModelSection;

// Keys of all architectures, unless an architecture's own table has the field too.
constexpr HfKey common_keys[] = {
    {"hidden_size", &M::hidden_size, -1},
    {"intermediate_size", &M::intermediate_size, -1},
    {"num_hidden_layers", &M::num_hidden_layers, -1},
    {"num_attention_heads", &M::num_attention_heads, -1},
    {"vocab_size", &M::vocab_size, -1},
    {"rms_norm_eps", &M::rms_norm_eps, 1e-6},
    {"initializer_range", &M::initializer_range, 0.02},
    {"tie_word_embeddings", &M::tie_word_embeddings, false},
};

void read_key(const HfJson& json, const HfKey& key, M& model) {
  const char* const name = key.key.data();
  if (key.missing < 0 && !json.has(name)) json.fail(name, "is missing");
  const double missing = key.null_is_zero && json.is_null(name) ? 0 : key.missing;
  if (const auto* flag = std::get_if<bool M::*>(&key.field)) {
    model.** flag = json.flag(name, missing != 0);
  } else if (const auto* number = std::get_if<double M::*>(&key.field)) {
    model.** number = json.number(name, missing);
  } else {
    model.*std::get<int64_t M::*>(key.field) = json.size(name, static_cast<int64_t>(missing));
  }
}

// What the architectures have in common, but with other defaults.
void read_sizes(const HfJson& json, const Architecture& architecture, M& model) {
  for (const HfKey& key : common_keys)
    if (!architecture.takes(key.field)) read_key(json, key, model);
  const int64_t positions = architecture.hf_max_positions;
  if (positions > 0) model.max_position_embeddings = json.size("max_position_embeddings", positions);
  if (architecture.has_attention_bias) model.attention_bias = json.flag("attention_bias", false);
  if (architecture.has_mlp_bias) model.mlp_bias = json.flag("mlp_bias", false);
  for (const HfKey& key : architecture.hf_keys) read_key(json, key, model);
  const auto or_else = [](int64_t size, int64_t other) { return size > 0 ? size : other; };
  const int64_t heads = model.num_attention_heads;
  model.num_key_value_heads = json.size("num_key_value_heads", or_else(architecture.hf_kv_heads, heads));
  model.head_dim = json.size(
      "head_dim", or_else(architecture.hf_head_dim, std::max<int64_t>(1, model.hidden_size / heads)));
}

// Names of one function; the first one is written.
std::vector<std::string_view> names_of(nn::Activation activation) {
  switch (activation) {
    case nn::Activation::silu:
      return {"silu"};
    case nn::Activation::gelu:
      return {"gelu"};
    case nn::Activation::gelu_tanh:
      return {"gelu_pytorch_tanh", "gelu_new", "gelu_fast"};
    case nn::Activation::relu_squared:
      return {"relu2"};
  }
  throw Error("unknown activation");
}

std::string_view written_activation(const Architecture& architecture) {
  return architecture.hf_activation.empty() ? names_of(architecture.decoder.activation).front()
                                            : architecture.hf_activation;
}

// Refuses settings that transformers computes and pptrain does not.
void refuse_unsupported(const HfJson& json, const Architecture& architecture) {
  const char* const key = architecture.hf_activation_key.data();
  const auto names = names_of(architecture.decoder.activation);
  const std::string activation = json.text(key, std::string(names.front()));
  if (std::ranges::find(names, activation) == names.end()) {
    json.fail(key, fmt::format("\"{}\" is not supported; supported: {}", activation, fmt::join(names, ", ")));
  }
  json.refuse_dropout({"attention_dropout"});
  if (!architecture.has_window && json.flag("use_sliding_window", false)) {
    json.fail("use_sliding_window", "sliding-window attention is not supported");
  }
  if (json.has("quantization_config")) {
    json.fail("quantization_config",
              "quantized weights are not supported; take the model's bf16 or fp32 version");
  }
}

// As in transformers: a factor in `rope` takes precedence over one next to it.
void read_rotated_part(const HfJson& rope, const HfJson& json, const Architecture& architecture, M& model) {
  const bool inside = rope.has("partial_rotary_factor");
  const char* const key = inside ? "partial_rotary_factor" : architecture.hf_rope.part_key.data();
  const HfJson& where = inside ? rope : json;
  model.partial_rotary_factor = where.positive(key, architecture.hf_rope.part);
  if (!architecture.has_partial_rotation && model.partial_rotary_factor != 1)
    where.fail(key, "only 1 is supported: every dimension of a head is rotated");
  if (model.partial_rotary_factor > 1) where.fail(key, "is above 1");
}

config::Word<config::RopeType> rope_type(const HfJson& rope, const HfRope& names) {
  constexpr auto words = config::words<config::RopeType>;
  std::string type = rope.text("rope_type", rope.text("type", "default"));
  if (names.all_scalings_long && (type == "su" || type == "yarn")) type = "longrope";
  const auto found = std::ranges::find(words, std::string_view(type));
  if (found == words.end()) {
    rope.fail("rope_type",
              fmt::format("\"{}\" is not supported; supported: {}", type, fmt::join(words, ", ")));
  }
  return static_cast<config::RopeType>(found - words.begin());
}

void read_yarn(const HfJson& rope, config::RopeScaling& scaling) {
  scaling.beta_fast = rope.positive("beta_fast", 32);
  scaling.beta_slow = rope.positive("beta_slow", 1);
  scaling.mscale = rope.number("mscale", 0);
  scaling.mscale_all_dim = rope.number("mscale_all_dim", 0);
  scaling.truncate = rope.flag("truncate", true);
}

void read_original_positions(const HfJson& rope, const HfJson& json, const HfRope& names, const M& model,
                             config::RopeScaling& scaling) {
  constexpr const char* original = "original_max_position_embeddings";  // next to `rope`, else in it
  const int64_t inside = rope.size(original, model.max_position_embeddings);
  scaling.original_max_position_embeddings =
      json.size(original, names.original_positions > 0 ? names.original_positions : inside);
}

config::RopeScaling read_rope_scaling(const HfJson& rope, const HfJson& json, const HfRope& names,
                                      const M& model) {
  using enum config::RopeType;
  config::RopeScaling scaling{.rope_type = rope_type(rope, names)};
  if (scaling.rope_type == none) return scaling;
  const bool may_follow = scaling.rope_type == yarn || scaling.rope_type == longrope;
  if (scaling.rope_type == llama3 || may_follow) read_original_positions(rope, json, names, model, scaling);
  const double ratio = static_cast<double>(model.max_position_embeddings) /
                       static_cast<double>(scaling.original_max_position_embeddings);
  if (!rope.has("factor") && !may_follow) rope.fail("factor", "is missing");
  scaling.factor = rope.positive("factor", std::max(1.0, ratio));
  if (scaling.rope_type == llama3) {
    scaling.low_freq_factor = rope.positive("low_freq_factor", 1);
    scaling.high_freq_factor = rope.positive("high_freq_factor", 4);
    if (scaling.high_freq_factor <= scaling.low_freq_factor)
      rope.fail("high_freq_factor", "is not above low_freq_factor");
  }
  if (scaling.rope_type == yarn) {
    read_yarn(rope, scaling);
  } else if (rope.number("mscale_all_dim", 0) != 0) {
    rope.fail("mscale_all_dim", "is supported with yarn alone");
  }
  if (may_follow) scaling.attention_factor = rope.number("attention_factor", 0);
  if (scaling.rope_type == longrope) {
    scaling.short_factor = rope.numbers("short_factor");
    scaling.long_factor = rope.numbers("long_factor");
  }
  return scaling;
}

// If both are there, transformers takes the older one, unless it is empty.
const char* rope_key(const HfJson& json) {
  return json.is_filled("rope_scaling") ? "rope_scaling" : "rope_parameters";
}

// One object of settings; without rope_theta in it, model.rope_theta stays.
void read_one_rope(const HfJson& rope, const HfJson& json, const Architecture& architecture, M& model) {
  read_rotated_part(rope, json, architecture, model);
  model.rope_theta = rope.positive("rope_theta", model.rope_theta);
  model.rope_scaling = read_rope_scaling(rope, json, architecture.hf_rope, model);
}

// rope_parameters has an object for each kind of layer; rope_scaling, in older files, is for full attention.
void read_two_ropes(const HfJson& json, const Architecture& architecture, M& model) {
  model.rope_local_base_freq = json.positive("rope_local_base_freq", 10000);
  read_rotated_part(json, json, architecture, model);
  if (json.is_filled("rope_parameters")) {
    const HfJson both = json.object("rope_parameters");
    read_one_rope(both.object(full_attention.data()), json, architecture, model);
    if (both.has(sliding_attention.data())) {
      const HfJson local = both.object(sliding_attention.data());
      model.rope_local_base_freq = local.positive("rope_theta", model.rope_local_base_freq);
      if (rope_type(local, architecture.hf_rope) != config::RopeType::none)
        local.fail("rope_type", "only default is supported for layers with a sliding window");
    }
  }
  if (json.is_filled("rope_scaling")) read_one_rope(json.object("rope_scaling"), json, architecture, model);
}

void read_rope(const HfJson& json, const Architecture& architecture, M& model) {
  if (architecture.decoder.learned_positions) return;
  model.rope_theta = json.positive(architecture.hf_rope.theta_key.data(), architecture.hf_rope.theta);
  if (architecture.has_local_rope) return read_two_ropes(json, architecture, model);
  const char* key = rope_key(json);
  if (!json.has(key)) return read_rotated_part(json, json, architecture, model);
  read_one_rope(json.object(key), json, architecture, model);
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

void write_yarn(const config::RopeScaling& scaling, OrderedJson& json) {
  json["beta_fast"] = scaling.beta_fast;
  json["beta_slow"] = scaling.beta_slow;
  if (scaling.mscale > 0) json["mscale"] = scaling.mscale;
  if (scaling.mscale_all_dim > 0) json["mscale_all_dim"] = scaling.mscale_all_dim;
  json["truncate"] = scaling.truncate;
}

OrderedJson rope_scaling(const config::RopeScaling& scaling) {
  using enum config::RopeType;
  const config::RopeType type = scaling.rope_type;
  if (type == none) return nullptr;
  OrderedJson json = {{"rope_type", scaling.rope_type.text}, {"factor", scaling.factor}};
  if (type == llama3) {
    json["low_freq_factor"] = scaling.low_freq_factor;
    json["high_freq_factor"] = scaling.high_freq_factor;
  }
  if (type == yarn) write_yarn(scaling, json);
  if (type == longrope) {
    json["short_factor"] = scaling.short_factor;
    json["long_factor"] = scaling.long_factor;
  }
  if (scaling.attention_factor > 0) json["attention_factor"] = scaling.attention_factor;
  if (type == llama3 || type == yarn || type == longrope)
    json["original_max_position_embeddings"] = scaling.original_max_position_embeddings;
  return json;
}

// The architecture's own keys, in the place of common ones that hold the same field.
void write_keys(const M& model, const Architecture& architecture, OrderedJson& json) {
  for (const HfKey& key : architecture.hf_keys) {
    const auto* const common = std::ranges::find(common_keys, key.field, &HfKey::field);
    if (common != std::end(common_keys) && common->key != key.key) json.erase(std::string(common->key));
    OrderedJson& value = json[std::string(key.key)];
    std::visit([&](auto field) { value = model.*field; }, key.field);
    if (key.null_is_zero && value == 0) value = nullptr;
  }
}

void write_rope_names(const M& model, const Architecture& architecture, OrderedJson& json) {
  const HfRope& names = architecture.hf_rope;
  if (names.theta_key != "rope_theta") json.erase("rope_theta");
  json[std::string(names.theta_key)] = model.rope_theta;
  if (architecture.has_partial_rotation) json[std::string(names.part_key)] = model.partial_rotary_factor;
  if (architecture.has_local_rope) json["rope_local_base_freq"] = model.rope_local_base_freq;
}

// null if the id is not known: if it were left out, transformers would take the architecture's default.
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

void HfJson::refuse_dropout(std::initializer_list<const char*> keys) const {
  for (const char* key : keys) {
    if (number(key, 0) != 0) fail(key, "dropout is not supported; set it to 0");
  }
}

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
  return has(key) ? integer(key, 1, "a size") : fallback;
}

int64_t HfJson::count(const char* key, int64_t fallback) const {
  return has(key) ? integer(key, 0, "a number of layers") : fallback;
}

int64_t HfJson::integer(const char* key, int64_t least, const char* what) const {
  const Json& value = object_.at(key);
  if (!value.is_number_integer() || value.get<double>() < static_cast<double>(least) ||
      value.get<double>() > largest_size)
    wrong(key, fmt::format("{}: expected an integer from {} to {}", what, least, largest_size));
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

template <typename Value, typename Fits>
std::vector<Value> HfJson::list(const char* key, const Fits& fits, const std::string& expected,
                                const std::string& range) const {
  if (!has(key)) return {};
  const Json& list = object_.at(key);
  if (!list.is_array()) wrong(key, expected);
  if (!std::ranges::all_of(list, fits)) wrong(key, expected + range);
  return list.get<std::vector<Value>>();
}

std::vector<int64_t> HfJson::integers(const char* key) const {
  const auto fits = [](const Json& value) {
    return value.is_number_integer() && value.get<double>() >= 0 && value.get<double>() <= largest_size;
  };
  return list<int64_t>(key, fits, "a list of integers", fmt::format(" from 0 to {}", largest_size));
}

std::vector<double> HfJson::numbers(const char* key) const {
  return list<double>(key, &Json::is_number, "a list of numbers");
}

std::vector<std::string> HfJson::texts(const char* key, std::span<const std::string_view> allowed) const {
  const auto fits = [&](const Json& value) {
    return value.is_string() && std::ranges::find(allowed, value.get<std::string>()) != allowed.end();
  };
  return list<std::string>(key, fits, fmt::format("a list of \"{}\"", fmt::join(allowed, "\" or \"")));
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

namespace {

std::string config_path(const std::string& dir) {
  return (std::filesystem::path(dir) / "config.json").string();
}

std::string read_config_text(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error))
    throw UsageError(fmt::format("{} cannot be read: a Hugging Face directory has a config.json", path));
  try {
    return std::string(io::MappedFile(path).text());
  } catch (const Error& unreadable) {
    throw UsageError(unreadable.what());
  }
}

}  // namespace

config::ModelSection read_hf_config(const std::string& dir) {
  const std::string path = config_path(dir);
  return parse_hf_config(read_config_text(path), path);
}

int64_t hf_prediction_layers(const std::string& dir) {
  const std::string path = config_path(dir);
  const Json object = parse_json(read_config_text(path), path);
  return HfJson(object, path).count("num_nextn_predict_layers", 0);
}

config::ModelSection parse_hf_config(std::string_view text, const std::string& path) {
  const Json object = parse_json(text, path);
  const HfJson json(object, path);
  const Architecture& architecture = architecture_of(json);
  refuse_unsupported(json, architecture);
  M model;
  model.arch = architecture.name;
  read_sizes(json, architecture, model);
  if (architecture.read_hf != nullptr) architecture.read_hf(json, model);
  // A missing key means the architecture's default; null means this value, for all architectures.
  if (json.is_null("num_key_value_heads")) model.num_key_value_heads = model.num_attention_heads;
  read_rope(json, architecture, model);
  fill_layers(model);
  check_ranges(json, model);
  return model;
}

OrderedJson TextEnds::eos_token_id() const {
  if (eos.empty()) return nullptr;
  return eos.size() == 1 ? OrderedJson(eos.front()) : OrderedJson(eos);
}

OrderedJson hf_config(const config::ModelSection& model, at::ScalarType dtype, const TextEnds& ends) {
  const Architecture& architecture = find_architecture(model.arch);
  OrderedJson json = {
      {"architectures", {architecture.hf_class}},
      {"attention_dropout", 0.0},
      {"bos_token_id", token(ends.bos)},
      {"dtype", dtype_text(dtype)},
      {"eos_token_id", ends.eos_token_id()},
      {"head_dim", model.head_dim},
      {std::string(architecture.hf_activation_key), written_activation(architecture)},
      {"hidden_size", model.hidden_size},
      {"initializer_range", model.initializer_range},
      {"intermediate_size", model.intermediate_size},
      {"max_position_embeddings", model.max_position_embeddings},
      {"model_type", architecture.name},
      {"num_attention_heads", model.num_attention_heads},
      {"num_hidden_layers", model.num_hidden_layers},
      {"num_key_value_heads", model.num_key_value_heads},
      {"pad_token_id", nullptr},  // transformers' default may lie beyond the vocabulary
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
  if (architecture.has_local_rope || architecture.has_partial_rotation)
    write_rope_names(model, architecture, json);
  write_keys(model, architecture, json);
  if (architecture.write_hf != nullptr) architecture.write_hf(model, json);
  return json;
}

}  // namespace pptrain::models
