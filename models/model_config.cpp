#include "models/model_config.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/config/validate.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

void check_sizes(const config::ModelSection& m, const Architecture& architecture,
                 const config::ReportConflict& report) {
  const bool has_width = architecture.experts_of_mlp_width || config::has_dense_layers(m);
  const std::pair<const char*, int64_t> sizes[] = {
      {"model.hidden_size", m.hidden_size},
      {"model.intermediate_size", has_width ? m.intermediate_size : 1},
      {"model.num_hidden_layers", m.num_hidden_layers},
      {"model.num_attention_heads", m.num_attention_heads},
      {"model.vocab_size", m.vocab_size},
  };
  for (const auto& [option, size] : sizes) {
    if (size > 0) continue;
    if (m.hf_dir.empty()) {
      report({option}, "is required where there is no model.hf_dir: give an integer above 0");
    } else {
      report({option, "model.hf_dir"},
             fmt::format("its config.json says no {}: give an integer above 0", option));
    }
  }
}

void require_size(const config::ModelSection& m, std::string_view option, int64_t size,
                  const config::ReportConflict& report) {
  if (size > 0) return;
  report({option, "model.arch"},
         fmt::format("{} needs {} where there is no model.hf_dir: give an integer above 0", m.arch, option));
}

void check_experts(const config::ModelSection& m, const Architecture& architecture,
                   const config::ReportConflict& report) {
  if (!architecture.sparse) return;
  require_size(m, "model.num_experts", m.num_experts, report);
  require_size(m, "model.num_experts_per_tok", m.num_experts_per_tok, report);
  if (!architecture.experts_of_mlp_width)
    require_size(m, "model.moe_intermediate_size", m.moe_intermediate_size, report);
  if (architecture.has_shared_expert())
    require_size(m, "model.shared_expert_intermediate_size", m.shared_expert_intermediate_size, report);
  if (m.num_experts > 0 && m.num_experts_per_tok > m.num_experts) {
    report({"model.num_experts_per_tok", "model.num_experts", "model.hf_dir"},
           fmt::format("num_experts_per_tok = {} is above num_experts = {}", m.num_experts_per_tok,
                       m.num_experts));
  }
  for (const int64_t layer : m.mlp_only_layers) {
    if (m.num_hidden_layers > 0 && layer >= m.num_hidden_layers) {
      report({"model.mlp_only_layers", "model.num_hidden_layers"},
             fmt::format("mlp_only_layers names layer {}, but there are {}, counted from 0", layer,
                         m.num_hidden_layers));
      return;
    }
  }
}

// Settings of [model] that the architecture does not have.
void check_biases(const config::ModelSection& m, const Architecture& architecture,
                  const config::ReportConflict& report) {
  const Decoder& decoder = architecture.decoder;
  const auto check = [&](const char* option, bool asked, bool has, bool always, const char* what) {
    if (!asked || has) return;
    report({option, "model.arch", "model.hf_dir"},
           always ? fmt::format("{} has biases in its {} by itself: remove this key", m.arch, what)
                  : fmt::format("{} has no biases in its {}", m.arch, what));
  };
  check("model.mlp_bias", m.mlp_bias, architecture.has_mlp_bias, decoder.mlp_bias,
        architecture.experts_of_mlp_width ? "experts" : "MLP");
  check("model.attention_bias", m.attention_bias,
        architecture.has_attention_bias || architecture.takes(&config::ModelSection::attention_bias),
        decoder.qkv_bias, "attention");
}

void check_layer_list(const config::ModelSection& m, const char* option, size_t given,
                      const config::ReportConflict& report) {
  if (given == 0 || m.num_hidden_layers == 0 || static_cast<int64_t>(given) == m.num_hidden_layers) return;
  report({option, "model.num_hidden_layers", "model.hf_dir"},
         fmt::format("has {} entries for num_hidden_layers = {}: give one for each layer", given,
                     m.num_hidden_layers));
}

// Checks settings by which layers differ.
void check_layers(const config::ModelSection& m, const Architecture& architecture,
                  const config::ReportConflict& report) {
  check_layer_list(m, "model.layer_types", m.layer_types.size(), report);
  check_layer_list(m, "model.no_rope_layers", m.no_rope_layers.size(), report);
  if (architecture.has_local_rope) require_size(m, "model.sliding_window", m.sliding_window, report);
}

SparseLayers sparse_layers(const config::ModelSection& m) {
  if (m.num_experts == 0) return {};
  const Architecture& architecture = find_architecture(m.arch);
  const Decoder& decoder = architecture.decoder;
  const bool as_mlp = architecture.experts_of_mlp_width;
  return {{.hidden = m.hidden_size,
           .experts = m.num_experts,
           .chosen = m.num_experts_per_tok,
           .intermediate = as_mlp ? m.intermediate_size : m.moe_intermediate_size,
           .sigmoid = decoder.sigmoid_router,
           .normalise = as_mlp || m.norm_topk_prob,
           .scale = m.routed_scaling_factor,
           .groups = m.n_group,
           .chosen_groups = m.topk_group,
           .limit = architecture.takes(&config::ModelSection::swiglu_limit) ? m.swiglu_limit : 0,
           .shared = architecture.has_shared_expert() ? m.shared_expert_intermediate_size : 0,
           .gated_shared = decoder.gated_shared,
           .init_std = m.initializer_range,
           .balance_loss = m.router_aux_loss_coef,
           .z_loss = m.router_z_loss_coef,
           .balance_bias = decoder.sigmoid_router || m.router_bias_update_rate > 0},
          m.decoder_sparse_step,
          m.mlp_only_layers};
}

// Rounded down, as transformers does it.
int64_t rotary_dim(const config::ModelSection& m, int64_t head_dim) {
  if (m.qk_rope_head_dim > 0) return m.qk_rope_head_dim;
  return static_cast<int64_t>(static_cast<double>(head_dim) * m.partial_rotary_factor);
}

// longrope has one factor for each frequency.
void check_factors(const config::ModelSection& m, const config::ReportConflict& report) {
  if (m.rope_scaling.rope_type != config::RopeType::longrope || m.num_attention_heads == 0) return;
  const int64_t head_dim = m.head_dim != 0 ? m.head_dim : m.hidden_size / m.num_attention_heads;
  const int64_t wanted = rotary_dim(m, head_dim) / 2;
  for (const auto& [option, list] :
       {std::pair("model.rope_scaling.short_factor", &m.rope_scaling.short_factor),
        std::pair("model.rope_scaling.long_factor", &m.rope_scaling.long_factor)}) {
    if (std::ssize(*list) == wanted) continue;
    report({option, "model.rope_scaling.rope_type", "model.hf_dir"},
           fmt::format("has {} numbers; give {}, one for each rotary frequency", list->size(), wanted));
  }
}

// Checks latent attention: its sizes are given and fit each other.
void check_latent(const config::ModelSection& m, const config::ReportConflict& report) {
  for (const auto& [option, size] :
       {std::pair("model.kv_lora_rank", m.kv_lora_rank), std::pair("model.v_head_dim", m.v_head_dim),
        std::pair("model.qk_nope_head_dim", m.qk_nope_head_dim),
        std::pair("model.qk_rope_head_dim", m.qk_rope_head_dim)})
    require_size(m, option, size, report);
  const bool given = m.qk_nope_head_dim > 0 && m.qk_rope_head_dim > 0;
  if (given && m.v_head_dim > m.qk_nope_head_dim + m.qk_rope_head_dim) {
    report({"model.v_head_dim", "model.qk_nope_head_dim", "model.qk_rope_head_dim", "model.hf_dir"},
           fmt::format("v_head_dim = {} is above qk_nope_head_dim + qk_rope_head_dim = {}", m.v_head_dim,
                       m.qk_nope_head_dim + m.qk_rope_head_dim));
  }
  if (m.qk_rope_head_dim % 2 != 0) {
    report({"model.qk_rope_head_dim", "model.hf_dir"},
           fmt::format("{} is odd: rotary embeddings need an even number", m.qk_rope_head_dim));
  }
}

// Refuses what DeepSeek's config.json cannot say: dense layers are the first ones, shared experts as wide as
// the others.
void check_shared_and_groups(const config::ModelSection& m, const config::ReportConflict& report) {
  for (size_t i = 0; i < m.mlp_only_layers.size(); ++i) {
    if (m.mlp_only_layers[i] == static_cast<int64_t>(i)) continue;
    report({"model.mlp_only_layers", "model.arch"},
           fmt::format("names layer {} in the place of {}: dense layers of {} are the first ones",
                       m.mlp_only_layers[i], i, m.arch));
    break;
  }
  if (m.moe_intermediate_size > 0 && m.shared_expert_intermediate_size % m.moe_intermediate_size != 0) {
    report({"model.shared_expert_intermediate_size", "model.moe_intermediate_size"},
           fmt::format("is not a multiple of moe_intermediate_size = {}", m.moe_intermediate_size));
  }
  if (m.num_experts == 0) return;  // which is said already
  const int64_t group = m.num_experts / m.n_group;
  if (m.num_experts % m.n_group != 0 || m.topk_group > m.n_group ||
      m.num_experts_per_tok > group * m.topk_group) {
    report({"model.n_group", "model.topk_group", "model.num_experts", "model.hf_dir"},
           fmt::format("{} of {} experts cannot be chosen in {} of {} equal groups", m.num_experts_per_tok,
                       m.num_experts, m.topk_group, m.n_group));
  }
}

void check_heads(const config::ModelSection& m, const config::ReportConflict& report) {
  if (m.num_attention_heads == 0) return;
  if (m.num_key_value_heads != 0 && m.num_attention_heads % m.num_key_value_heads != 0) {
    report({"model.num_key_value_heads", "model.num_attention_heads", "model.hf_dir"},
           fmt::format("num_attention_heads = {} is not divisible by num_key_value_heads = {}",
                       m.num_attention_heads, m.num_key_value_heads));
  }
  if (m.head_dim == 0 && m.hidden_size % m.num_attention_heads != 0) {
    report({"model.hidden_size", "model.num_attention_heads", "model.hf_dir"},
           fmt::format("hidden_size = {} is not divisible by num_attention_heads = {}: change one of them, "
                       "or give model.head_dim",
                       m.hidden_size, m.num_attention_heads));
    return;
  }
  const int64_t head_dim = m.head_dim != 0 ? m.head_dim : m.hidden_size / m.num_attention_heads;
  if (const int64_t turned = rotary_dim(m, head_dim);
      turned != head_dim && (turned == 0 || turned % 2 != 0)) {
    report({"model.partial_rotary_factor", "model.head_dim", "model.hf_dir"},
           fmt::format(
               "head_dim * partial_rotary_factor = {} dims of each head to rotate; their number must be even "
               "and above 0",
               turned));
  }
  if (head_dim % 2 != 0) {
    report(
        {"model.head_dim", "model.hidden_size", "model.num_attention_heads", "model.hf_dir"},
        fmt::format("{} = {} is odd: rotary embeddings need an even one",
                    m.head_dim != 0 ? "head_dim" : "head_dim (hidden_size / num_attention_heads)", head_dim));
  }
}

// No config.json of the family could say otherwise.
void check_plain_heads(const config::ModelSection& m, const config::ReportConflict& report) {
  const int64_t heads = m.num_attention_heads;
  if (m.num_key_value_heads != 0 && m.num_key_value_heads != heads) {
    report({"model.num_key_value_heads", "model.arch", "model.hf_dir"},
           fmt::format("every head of {} has keys: remove this key", m.arch));
  }
  if (m.head_dim != 0 && m.head_dim * heads != m.hidden_size) {
    report({"model.head_dim", "model.arch", "model.hf_dir"},
           fmt::format("a head of {} has hidden_size / num_attention_heads dims: remove this key", m.arch));
  }
}

void check_positions(const config::ModelSection& m, const Architecture& architecture, int64_t seq_len,
                     const config::ReportConflict& report) {
  const config::RopeScaling& rope = m.rope_scaling;
  if (rope.rope_type == config::RopeType::llama3 && rope.high_freq_factor <= rope.low_freq_factor) {
    report({"model.rope_scaling.high_freq_factor", "model.rope_scaling.low_freq_factor"},
           fmt::format("high_freq_factor = {} is not above low_freq_factor = {}", rope.high_freq_factor,
                       rope.low_freq_factor));
  }
  check_factors(m, report);
  if (architecture.hf_rope.all_scalings_long && rope.rope_type != config::RopeType::none &&
      rope.rope_type != config::RopeType::longrope) {
    report({"model.rope_scaling.rope_type", "model.arch", "model.hf_dir"},
           fmt::format("{} has longrope or no scaling: transformers takes no \"{}\"", m.arch,
                       rope.rope_type.text));
  }
  if (m.max_position_embeddings != 0 && seq_len > m.max_position_embeddings &&
      rope.rope_type != config::RopeType::dynamic) {
    report({"train.seq_len", "model.max_position_embeddings"},
           fmt::format("seq_len = {} is longer than model.max_position_embeddings = {}", seq_len,
                       m.max_position_embeddings));
  }
}

std::vector<LayerKind> layer_kinds(const config::ModelSection& m, const Architecture& architecture) {
  if (m.sliding_window == 0 && m.no_rope_layers.empty() && !architecture.decoder.learned_positions) return {};
  std::vector<LayerKind> kinds(static_cast<size_t>(m.num_hidden_layers));
  for (size_t i = 0; i < kinds.size(); ++i) {
    const bool slides =
        m.sliding_window > 0 && (m.layer_types.empty() || m.layer_types[i] == sliding_attention);
    if (slides) kinds[i].window = m.sliding_window;
    if (slides && architecture.has_local_rope) kinds[i].rope = 1;
    const bool still = !m.no_rope_layers.empty() && m.no_rope_layers[i] == 0;
    if (still || architecture.decoder.learned_positions) kinds[i].rope = -1;
  }
  return kinds;
}

double attention_scale(const config::ModelSection& m) {
  if (m.attention_multiplier > 0) return m.attention_multiplier;
  return m.query_pre_attn_scalar > 0 ? 1 / std::sqrt(static_cast<double>(m.query_pre_attn_scalar)) : 0;
}

}  // namespace

std::vector<std::string> layer_types_of(const config::ModelSection& model) {
  if (!model.layer_types.empty()) return model.layer_types;
  return {static_cast<size_t>(model.num_hidden_layers),
          std::string(model.sliding_window > 0 ? sliding_attention : full_attention)};
}

void finish_model(config::ModelSection& section, int64_t seq_len, const config::ReportConflict& report) {
  const Architecture& architecture = find_architecture(section.arch);
  check_sizes(section, architecture, report);
  if (architecture.decoder.latent_attention) {
    check_latent(section, report);
    check_shared_and_groups(section, report);
    section.head_dim = section.qk_nope_head_dim + section.qk_rope_head_dim;
    section.num_key_value_heads = section.num_attention_heads;
  }
  check_heads(section, report);
  if (architecture.plain_heads) check_plain_heads(section, report);
  check_experts(section, architecture, report);
  check_biases(section, architecture, report);
  check_layers(section, architecture, report);
  check_positions(section, architecture, seq_len, report);
  if (section.num_key_value_heads == 0) section.num_key_value_heads = section.num_attention_heads;
  if (section.head_dim == 0 && section.num_attention_heads > 0) {
    section.head_dim = section.hidden_size / section.num_attention_heads;
  }
  if (section.max_position_embeddings == 0) section.max_position_embeddings = seq_len;
  fill_layers(section);
  using M = config::ModelSection;
  if (architecture.takes(&M::query_pre_attn_scalar) && section.query_pre_attn_scalar == 0)
    section.query_pre_attn_scalar = section.head_dim;
  if (architecture.takes(&M::attention_multiplier) && section.attention_multiplier == 0)
    section.attention_multiplier = 1 / std::sqrt(static_cast<double>(section.head_dim));
}

ModelConfig make_model_config(const config::ModelSection& section, int64_t seq_len) {
  if (seq_len < 1) throw UsageError(fmt::format("train.seq_len: {} is not a length", seq_len));
  config::ModelSection finished = section;
  finish_model(finished, seq_len,
               [](std::initializer_list<std::string_view> options, const std::string& text) {
                 throw UsageError(fmt::format("{}: {}", *options.begin(), text));
               });
  const Architecture& architecture = find_architecture(finished.arch);
  const auto width = static_cast<double>(finished.hidden_size);
  return {
      .arch = finished.arch,
      .layers = finished.num_hidden_layers,
      .hidden = finished.hidden_size,
      .intermediate = finished.intermediate_size,
      .heads = finished.num_attention_heads,
      .kv_heads = finished.num_key_value_heads,
      .head_dim = finished.head_dim,
      .vocab = finished.vocab_size,
      .max_seq = seq_len,
      .rope_theta = finished.rope_theta,
      .rope_scaling = finished.rope_scaling,
      .norm_eps = finished.rms_norm_eps,
      .initializer_range = finished.initializer_range,
      .tied = finished.tie_word_embeddings,
      .attention_bias = finished.attention_bias,
      .mlp_bias = finished.mlp_bias,
      .sparse = sparse_layers(finished),
      .q_rank = finished.q_lora_rank,
      .kv_rank = finished.kv_lora_rank,
      .nope_dim = finished.qk_nope_head_dim,
      .rope_dim = finished.qk_rope_head_dim,
      .v_dim = finished.v_head_dim,
      .layer_kinds = layer_kinds(finished, architecture),
      .rotary_dim = rotary_dim(finished, finished.head_dim) % finished.head_dim,
      .local_rope_theta = architecture.has_local_rope ? finished.rope_local_base_freq : 0,
      .max_positions = finished.max_position_embeddings,
      .embedding_scale =
          architecture.decoder.scaled_embedding ? std::sqrt(width) : finished.embedding_multiplier,
      .residual_scale = finished.residual_multiplier,
      .logit_scale = 1 / finished.logits_scaling,
      .attention_scale = attention_scale(finished),
      .attention_softcap = finished.attn_logit_softcapping,
      .logit_softcap = finished.final_logit_softcapping,
      .parallel_residual =
          architecture.takes(&config::ModelSection::use_parallel_residual) && finished.use_parallel_residual,
  };
}

}  // namespace pptrain::models
