#include "models/model_config.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/config/validate.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

constexpr auto recompute_words =
    std::to_array<std::string_view>({"none", "cheap", "selective", "full"});  // as in the enum

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
    const std::string text = "is required where there is no model.hf_dir: give an integer above 0";
    if (m.hf_dir.empty()) {
      report({option}, text);
    } else {
      report({option, "model.hf_dir"}, text);
    }
  }
}

void require_size(const config::ModelSection& m, std::string_view option, int64_t size,
                  const config::ReportConflict& report) {
  if (size > 0) return;
  report({option, "model.arch"},
         fmt::format("is required for {} where there is no model.hf_dir: give an integer above 0", m.arch));
}

void check_experts(const config::ModelSection& m, const Architecture& architecture,
                   const config::ReportConflict& report) {
  if (!architecture.sparse) return;
  require_size(m, "model.num_experts", m.num_experts, report);
  require_size(m, "model.num_experts_per_tok", m.num_experts_per_tok, report);
  if (!architecture.experts_of_mlp_width)
    require_size(m, "model.moe_intermediate_size", m.moe_intermediate_size, report);
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
  if (m.mlp_bias && !architecture.has_mlp_bias) {
    report({"model.mlp_bias", "model.arch", "model.hf_dir"},
           fmt::format("{} has no biases in its {}", m.arch,
                       architecture.experts_of_mlp_width ? "experts" : "MLP"));
  }
  if (m.attention_bias && !architecture.has_attention_bias) {
    report({"model.attention_bias", "model.arch", "model.hf_dir"},
           fmt::format("{} has no biases in its attention", m.arch));
  }
}

SparseLayers sparse_layers(const config::ModelSection& m) {
  if (m.num_experts == 0) return {};
  const bool as_mlp = find_architecture(m.arch).experts_of_mlp_width;
  return {.experts = m.num_experts,
          .chosen = m.num_experts_per_tok,
          .intermediate = as_mlp ? m.intermediate_size : m.moe_intermediate_size,
          .normalise = as_mlp || m.norm_topk_prob,
          .step = m.decoder_sparse_step,
          .dense = m.mlp_only_layers,
          .balance_loss = m.router_aux_loss_coef,
          .z_loss = m.router_z_loss_coef,
          .bias_rate = m.router_bias_update_rate};
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
  if (head_dim % 2 != 0) {
    report(
        {"model.head_dim", "model.hidden_size", "model.num_attention_heads", "model.hf_dir"},
        fmt::format("{} = {} is odd: rotary embeddings need an even one",
                    m.head_dim != 0 ? "head_dim" : "head_dim (hidden_size / num_attention_heads)", head_dim));
  }
}

void check_positions(const config::ModelSection& m, int64_t seq_len, const config::ReportConflict& report) {
  const config::RopeScaling& rope = m.rope_scaling;
  if (rope.rope_type == config::RopeType::llama3 && rope.high_freq_factor <= rope.low_freq_factor) {
    report({"model.rope_scaling.high_freq_factor", "model.rope_scaling.low_freq_factor"},
           fmt::format("high_freq_factor = {} is not above low_freq_factor = {}", rope.high_freq_factor,
                       rope.low_freq_factor));
  }
  if (m.max_position_embeddings != 0 && seq_len > m.max_position_embeddings) {
    report({"train.seq_len", "model.max_position_embeddings"},
           fmt::format("seq_len = {} is longer than model.max_position_embeddings = {}", seq_len,
                       m.max_position_embeddings));
  }
}

}  // namespace

Recompute make_recompute(std::string_view word) {
  const auto found = std::ranges::find(recompute_words, word);
  if (found != recompute_words.end()) return all_recomputes[found - recompute_words.begin()];
  throw UsageError(fmt::format("train.recompute: \"{}\" is not known; valid are \"{}\"", word,
                               fmt::join(recompute_words, "\", \"")));
}

std::string_view to_string(Recompute recompute) {
  return recompute_words[static_cast<size_t>(recompute)];
}

void finish_model(config::ModelSection& section, int64_t seq_len, const config::ReportConflict& report) {
  const Architecture& architecture = find_architecture(section.arch);
  check_sizes(section, architecture, report);
  check_heads(section, report);
  check_experts(section, architecture, report);
  check_biases(section, architecture, report);
  check_positions(section, seq_len, report);
  if (section.num_key_value_heads == 0) section.num_key_value_heads = section.num_attention_heads;
  if (section.head_dim == 0 && section.num_attention_heads > 0) {
    section.head_dim = section.hidden_size / section.num_attention_heads;
  }
  if (section.max_position_embeddings == 0) section.max_position_embeddings = seq_len;
}

ModelConfig make_model_config(const config::ModelSection& section, int64_t seq_len) {
  if (seq_len < 1) throw UsageError(fmt::format("train.seq_len: {} is not a length", seq_len));
  config::ModelSection finished = section;
  finish_model(finished, seq_len,
               [](std::initializer_list<std::string_view> options, const std::string& text) {
                 throw UsageError(fmt::format("{}: {}", *options.begin(), text));
               });
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
  };
}

}  // namespace pptrain::models
