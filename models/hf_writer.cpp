#include "models/hf_writer.h"

#include <spdlog/fmt/fmt.h>

#include <nlohmann/json.hpp>
#include <span>

#include "core/base/error.h"
#include "models/registry.h"
#include "models/weight_map.h"
#include "models/whole_model.h"

namespace pptrain::models {
namespace {

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
  architecture.write_hf(model, json);
  return json;
}

std::vector<HfTensor> hf_tensors(const ModelConfig& model) {
  const Architecture& architecture = find_architecture(model.arch);
  TransformerStage whole(model, whole_model(model));
  std::vector<HfTensor> tensors;
  for (const nn::ParameterSpec* spec : whole.parameters().specs()) {
    if (model.tied && spec->name == "head.weight") continue;
    if (spec->role == nn::Role::balance) {
      throw Error(
          fmt::format("{}: {} has no bias on the choice of experts (model.router_bias_update_rate > 0), and "
                      "without it the model would compute something else",
                      spec->name, architecture.hf_class));
    }
    tensors.push_back({hf_name(architecture.weights, spec->name, model.tied), spec->name, spec->shape});
  }
  return tensors;
}

}  // namespace pptrain::models
