// The architectures by name: the one list to extend when a model is added.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>

#include "core/config/job_config.h"
#include "models/block.h"
#include "models/model_config.h"
#include "models/weight_map.h"

namespace pptrain::models {

class HfJson;

// Everything that describes one architecture.
struct Architecture {
  std::string_view name;                // model.arch
  std::string_view hf_model_type;       // config.json's model_type
  std::string_view hf_class;            // its `architectures`: the class in transformers
  std::span<const WeightName> weights;  // beside, or instead of, decoder_weights

  bool sparse = false;  // layers may have experts
  // Experts are as wide as an MLP would be (intermediate_size), and the chosen ones' probabilities always
  // normalised.
  bool experts_of_mlp_width = false;
  bool has_attention_bias = true;  // [model] may ask for it
  bool has_mlp_bias = false;

  // What the architecture fixes, of the layer with this number.
  BlockConfig (*block)(const ModelConfig&, int64_t layer);
  // transformers' defaults for what config.json leaves out.
  int64_t hf_kv_heads = 0;  // 0: as many as heads
  int64_t hf_head_dim = 0;  // 0: hidden_size / num_attention_heads
  int64_t hf_max_positions = 0;
  // Reads what no other architecture has, and refuses what is not supported; all else is read already. Null:
  // nothing.
  void (*read_hf)(const HfJson& json, config::ModelSection& model) = nullptr;
  // The inverse: writes what it reads, and what of the architecture is to stay off. Null: nothing.
  void (*write_hf)(const config::ModelSection& model, nlohmann::ordered_json& json) = nullptr;
};

// Llama's block, which others change; attention_bias gives q, k, v and o a bias each.
BlockConfig llama_block(const ModelConfig& model, int64_t layer);
// The same, with experts in the place of the MLP where the layer is sparse.
BlockConfig sparse_block(const ModelConfig& model, int64_t layer);

// Each is defined in the file of its name.
extern const Architecture llama;
extern const Architecture qwen3;
extern const Architecture qwen3_moe;
extern const Architecture mixtral;

inline constexpr const Architecture* architectures[] = {&llama, &qwen3, &qwen3_moe, &mixtral};

// Throws UsageError that lists the known names.
const Architecture& find_architecture(std::string_view name);

}  // namespace pptrain::models
