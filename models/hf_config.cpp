#include "models/hf_config.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "core/config/field.h"
#include "core/config/options.h"
#include "core/io/mapped_file.h"
#include "core/io/strict_json.h"
#include "models/hf_json.h"
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
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  if (type == "default") return scaling;
  if (type != "linear" && type != "llama3") {
    rope.fail("rope_type", fmt::format("\"{}\" is not supported; supported: default, linear, llama3", type));
  }
  scaling.rope_type = type == "linear" ? config::RopeType::linear : config::RopeType::llama3;
  if (!rope.has("factor")) rope.fail("factor", "is missing");
  scaling.factor = rope.positive("factor", 1);
  if (type == "llama3") {
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

}  // namespace

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
  architecture.read_hf(json, model);
  // Missing, it is the architecture's default; null, it is this for all of them.
  if (json.is_null("num_key_value_heads")) model.num_key_value_heads = model.num_attention_heads;
  read_rope(json, model);
  check_ranges(json, model);
  return model;
}

}  // namespace pptrain::models
