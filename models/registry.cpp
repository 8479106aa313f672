#include "models/registry.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <ranges>
#include <vector>

#include "core/base/error.h"
#include "core/config/families.h"
#include "core/config/nearest.h"
#include "models/model_config.h"

namespace pptrain::models {
namespace {

using config::ModelSection;

// Which families take a key of [model], of those keys that not all of them take.
struct KeyRule {
  std::string_view key;
  bool (*taken)(const Architecture&);
};

template <auto Field>
bool reads(const Architecture& a) {
  return a.takes(Field);
}
bool has_experts(const Architecture& a) {
  return a.sparse;
}
bool has_experts_of_own_width(const Architecture& a) {
  return a.sparse && !a.experts_of_mlp_width;
}
bool has_softmax_router(const Architecture& a) {
  return a.sparse && !a.decoder.sigmoid_router;
}
bool has_latent_attention(const Architecture& a) {
  return a.decoder.latent_attention;
}

constexpr KeyRule key_rules[] = {
    {"rope_theta", [](const Architecture& a) { return !a.decoder.learned_positions; }},
    {"sliding_window", [](const Architecture& a) { return a.has_window; }},
    {"rope_local_base_freq", [](const Architecture& a) { return a.has_local_rope; }},
    {"partial_rotary_factor", [](const Architecture& a) { return a.has_partial_rotation; }},
    {"no_rope_layers", [](const Architecture& a) { return a.decoder.no_rope_every > 0; }},
    {"attn_logit_softcapping", reads<&ModelSection::attn_logit_softcapping>},
    {"final_logit_softcapping", reads<&ModelSection::final_logit_softcapping>},
    {"query_pre_attn_scalar", reads<&ModelSection::query_pre_attn_scalar>},
    {"attention_multiplier", reads<&ModelSection::attention_multiplier>},
    {"embedding_multiplier", reads<&ModelSection::embedding_multiplier>},
    {"residual_multiplier", reads<&ModelSection::residual_multiplier>},
    {"logits_scaling", reads<&ModelSection::logits_scaling>},
    {"use_parallel_residual", reads<&ModelSection::use_parallel_residual>},
    {"q_lora_rank", has_latent_attention},
    {"kv_lora_rank", has_latent_attention},
    {"qk_nope_head_dim", has_latent_attention},
    {"qk_rope_head_dim", has_latent_attention},
    {"v_head_dim", has_latent_attention},
    {"n_group", has_latent_attention},
    {"topk_group", has_latent_attention},
    {"routed_scaling_factor", has_latent_attention},
    {"num_experts", has_experts},
    {"num_experts_per_tok", has_experts},
    {"moe_intermediate_size", has_experts_of_own_width},
    {"mlp_only_layers", has_experts_of_own_width},
    {"shared_expert_intermediate_size", [](const Architecture& a) { return a.has_shared_expert(); }},
    {"swiglu_limit", reads<&ModelSection::swiglu_limit>},
    {"norm_topk_prob", reads<&ModelSection::norm_topk_prob>},
    {"decoder_sparse_step", reads<&ModelSection::decoder_sparse_step>},
    {"router_aux_loss_coef", has_softmax_router},
    {"router_z_loss_coef", has_softmax_router},
    {"router_bias_update_rate", has_experts},
};

config::Family family_of(const Architecture& a) {
  config::Family family{.name = a.name,
                        .other_names = fmt::format("{} {}", config::to_lower(a.hf_class), a.other_names),
                        .keys = {},
                        .whole_qk_norm = a.decoder.qk_norm == nn::QkNorm::whole};
  for (const KeyRule& rule : key_rules) {
    if (rule.taken(a)) family.keys.push_back(rule.key);
  }
  for (const auto key : a.read_keys | std::views::split(' '))
    if (!key.empty()) family.keys.emplace_back(key.begin(), key.end());
  return family;
}

}  // namespace

bool Architecture::takes(const HfKey::Field& field) const {
  return std::ranges::find(hf_keys, field, &HfKey::field) != hf_keys.end();
}

void fill_layers(config::ModelSection& model) {
  const Decoder& decoder = find_architecture(model.arch).decoder;
  const int full = decoder.full_attention_every, still = decoder.no_rope_every;
  if (model.sliding_window > 0 && full > 0 && model.layer_types.empty()) {
    for (int64_t i = 1; i <= model.num_hidden_layers; ++i)
      model.layer_types.emplace_back(i % full == 0 ? full_attention : sliding_attention);
  }
  if (still == 0 || !model.no_rope_layers.empty()) return;
  for (int64_t i = 1; i <= model.num_hidden_layers; ++i) model.no_rope_layers.push_back(i % still != 0);
}

std::string architecture_names(std::string_view separator) {
  return fmt::format("{}", fmt::join(architectures | std::views::transform(&Architecture::name), separator));
}

const Architecture& find_architecture(std::string_view name) {
  const auto* const found = std::ranges::find(architectures, name, &Architecture::name);
  if (found != std::end(architectures)) return **found;
  throw UsageError(
      fmt::format("model.arch: \"{}\" is not known; valid are \"{}\"", name, architecture_names("\", \"")));
}

}  // namespace pptrain::models

std::span<const pptrain::config::Family> pptrain::config::families() {
  static const std::vector<Family> all = [] {
    std::vector<Family> result;
    for (const models::Architecture* architecture : models::architectures)
      result.push_back(models::family_of(*architecture));
    return result;
  }();
  return all;
}
