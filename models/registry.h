// The architectures by name: the one list to extend when a model is added.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "core/config/job_config.h"
#include "core/nn/attention.h"
#include "core/nn/feed_forward.h"
#include "core/nn/norm.h"
#include "models/block.h"
#include "models/weight_map.h"

namespace pptrain::models {

class HfJson;

// How a decoder is built, as far as its architecture decides it and not a key of [model].
struct Decoder {
  nn::NormKind norm = nn::NormKind::rms;  // also of q and k
  NormPlaces norms = NormPlaces::before;
  nn::QkNorm qk_norm = nn::QkNorm::none;
  nn::Activation activation = nn::Activation::silu;
  bool gated = true;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;  // whatever [model] says
  bool sinks = false;                                       // of attention
  bool latent_attention = false;
  bool gated_shared = false;       // the shared expert
  bool sigmoid_router = false;     // always with a bias for the choice, which is one of the weights
  bool learned_positions = false;  // added to the embedding; no rotary ones
  bool scaled_embedding = false;   // by the root of the width
  // With a sliding window: layer i, counted from 1, sees all keys if this divides i; 0: no layer does.
  int full_attention_every = 0;
  // Without no_rope_layers: layer i, counted from 1, has no rotary embeddings if this divides i; 0: all have.
  int no_rope_every = 0;
};

// A key of config.json and the field of [model] that it holds.
struct HfKey {
  using Field = std::variant<int64_t config::ModelSection::*, double config::ModelSection::*,
                             bool config::ModelSection::*>;
  std::string_view key;
  Field field;
  double missing = 0;         // transformers' default, 0 and 1 of a flag; below 0: the key is required
  bool null_is_zero = false;  // which means off; else null counts as missing
};

// Rotary embeddings in config.json, and transformers' defaults.
struct HfRope {
  double theta = 10000;
  std::string_view theta_key = "rope_theta";
  double part = 1;
  std::string_view part_key = "partial_rotary_factor";
  int64_t original_positions = 0;  // 0: max_position_embeddings
  bool all_scalings_long = false;  // whatever its name, a scaling with factors is longrope
};

// Everything that describes one architecture.
struct Architecture {
  std::string_view name;                // model.arch, and config.json's model_type
  std::string_view hf_class;            // its `architectures`: the class in transformers
  std::string_view other_names = {};    // of models of the family, in lower case, with blanks between
  std::span<const WeightName> weights;  // in addition to decoder_weights, or instead
  Decoder decoder = {};

  bool sparse = false;  // layers may have experts
  // Experts are as wide as an MLP would be (intermediate_size), and the probabilities of the chosen experts
  // are always normalised.
  bool experts_of_mlp_width = false;
  bool has_attention_bias = true;  // [model] may ask for it
  bool has_mlp_bias = false;
  // Every head has keys, and together they are as wide as the residual stream.
  bool plain_heads = false;
  // transformers' configuration refuses a hidden_size that is no multiple of num_attention_heads.
  bool heads_divide_width = false;
  bool has_window = false;
  bool has_partial_rotation = false;
  bool has_local_rope = false;  // layers with a window have rotary frequencies of their own

  // Keys of config.json in addition to the common ones (hf_config.cpp), or instead if they hold the same
  // field.
  std::span<const HfKey> hf_keys = {};
  // Keys of [model] that read_hf reads, if other families do not take them; with blanks between.
  std::string_view read_keys = {};
  // transformers' defaults for what config.json leaves out.
  int64_t hf_kv_heads = 0;  // 0: as many as heads
  int64_t hf_head_dim = 0;  // 0: hidden_size / num_attention_heads
  int64_t hf_max_positions = 0;
  HfRope hf_rope = {};
  std::string_view hf_activation_key = "hidden_act";
  std::string_view hf_activation = {};  // as it is written; empty: the activation's usual name
  // Reads what no key of the table says, and refuses what is not supported. All but rotary embeddings is read
  // already. Null: nothing.
  void (*read_hf)(const HfJson& json, config::ModelSection& model) = nullptr;
  // The inverse: writes what it reads, and turns off features that the model does not use. Null: nothing.
  void (*write_hf)(const config::ModelSection& model, nlohmann::ordered_json& json) = nullptr;

  // config.json, and so [model], has this field.
  bool takes(const HfKey::Field& field) const;
  // An MLP that every token of a sparse layer passes.
  bool has_shared_expert() const {
    return decoder.latent_attention || takes(&config::ModelSection::shared_expert_intermediate_size);
  }
};

// Each is defined in the file of its name in families/.
extern const Architecture llama;
extern const Architecture qwen3;
extern const Architecture qwen3_moe;
extern const Architecture mixtral;
extern const Architecture qwen2;
extern const Architecture mistral;
extern const Architecture gemma2;
extern const Architecture gemma3_text;
extern const Architecture olmo2;
extern const Architecture phi3;
extern const Architecture smollm3;
extern const Architecture granite;
extern const Architecture gpt2;
extern const Architecture gpt_neox;
extern const Architecture qwen2_moe;
extern const Architecture gpt_oss;
extern const Architecture deepseek_v2;
extern const Architecture deepseek_v3;
extern const Architecture starcoder2;

inline constexpr const Architecture* architectures[] = {
    &llama,       &qwen3,   &qwen3_moe,   &mixtral,     &qwen2,      &mistral, &gemma2,
    &gemma3_text, &olmo2,   &phi3,        &smollm3,     &granite,    &gpt2,    &gpt_neox,
    &qwen2_moe,   &gpt_oss, &deepseek_v2, &deepseek_v3, &starcoder2,
};

// Fills layer_types and no_rope_layers by the architecture's pattern if they are empty and take effect.
void fill_layers(config::ModelSection& model);

// All names, in the list's order.
std::string architecture_names(std::string_view separator);

// Throws UsageError that lists the known names.
const Architecture& find_architecture(std::string_view name);

}  // namespace pptrain::models
