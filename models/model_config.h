// A model's sizes as plain values, checked once; what layers, counts and loaders take.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/job_config.h"
#include "core/config/loader.h"
#include "core/nn/experts.h"

namespace pptrain::models {

// The experts of sparse layers, and which layers have them; no layer has if `experts` is 0.
struct SparseLayers : nn::ExpertsConfig {
  int64_t step = 1;            // layer i, counted from 1, if the step divides i
  std::vector<int64_t> dense;  // except these, counted from 0

  bool contains(int64_t layer) const {
    return experts > 0 && (layer + 1) % step == 0 && std::ranges::find(dense, layer) == dense.end();
  }
};

// The words of model.layer_types.
inline constexpr std::string_view full_attention = "full_attention", sliding_attention = "sliding_attention";
inline constexpr std::array all_layer_types = {full_attention, sliding_attention};
// [num_hidden_layers] What each layer is, also if the section has no list: all slide if there is a window.
std::vector<std::string> layer_types_of(const config::ModelSection& model);

// How the attention of one layer differs from other layers'.
struct LayerKind {
  int64_t window = 0;  // keys that a token sees, itself among them; 0: all
  int rope = 0;        // which table of rope_tables (decoder.h); -1: none

  friend auto operator<=>(const LayerKind&, const LayerKind&) = default;
};

struct ModelConfig {
  std::string arch;  // a name in the registry
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads
  int64_t head_dim = 0;  // even; heads * head_dim may differ from hidden
  int64_t vocab = 0;
  int64_t max_seq = 0;  // train.seq_len
  double rope_theta = 10000;
  config::RopeScaling rope_scaling = {};
  double norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool tied = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  SparseLayers sparse = {};
  // Latent attention (core/nn/latent_attention.h); kv_rank 0: none.
  int64_t q_rank = 0, kv_rank = 0, nope_dim = 0, rope_dim = 0, v_dim = 0;
  std::vector<LayerKind> layer_kinds = {};  // of each layer; empty: all alike
  int64_t rotary_dim = 0;                   // dims of a head that are rotated; 0: all
  double local_rope_theta = 0;              // of a second rotary table; 0: there is none
  int64_t max_positions = 0;                // max_position_embeddings: rows of learned positions
  double embedding_scale = 1, residual_scale = 1, logit_scale = 1;
  double attention_scale = 0;                       // of scores; 0: 1 / sqrt(head_dim)
  double attention_softcap = 0, logit_softcap = 0;  // 0: none
  bool parallel_residual = false;
  // What learns of it (learning.h).
  config::LoraSection lora = {};
  std::vector<config::OptimizerGroup> groups = {};
  bool fp8 = false;                   // linear layers of attention and of MLPs multiply in FP8
  bool fp8_weight_gradients = false;  // for the gradients of their weights too

  // Tokens of the longest text that the model takes.
  int64_t longest_text() const { return std::max(max_seq, max_positions); }
  LayerKind kind(int64_t layer) const {
    return layer_kinds.empty() ? LayerKind() : layer_kinds[static_cast<size_t>(layer)];
  }
};

// The rules of [model]. Reports sizes that are missing or do not fit each other, settings that the
// architecture does not have, and a run longer than max_position_embeddings; then sets what 0 stands for
// (num_key_value_heads, head_dim, max_position_embeddings). `seq_len`: the longest sequence of the run.
// Throws UsageError for an unknown arch.
void finish_model(config::ModelSection& section, int64_t seq_len, const config::ReportConflict& report);

// From a [model] section, before or after finish_model. Throws UsageError that names the key: the first thing
// that finish_model reports, an unknown arch or rope_type, a seq_len below 1.
ModelConfig make_model_config(const config::ModelSection& section, int64_t seq_len);

}  // namespace pptrain::models
