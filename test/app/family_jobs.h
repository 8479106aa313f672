// Tiny jobs of every family.
#pragma once

#include <initializer_list>
#include <string>

#include "models/registry.h"
#include "test/app/small_job.h"

namespace pptrain::test {

inline const Overrides tiny = {"model.hidden_size=16",
                               "model.intermediate_size=24",
                               "model.num_attention_heads=4",
                               "model.initializer_range=0.2",
                               "train.seq_len=16",
                               "train.micro_batch_size=1",
                               "train.grad_accum_steps=4",
                               "train.steps=2",
                               "eval.interval=0",
                               "optimizer.eps=1e-3"};

// Every optional part of an architecture, none at its default.
inline Overrides family_settings(const models::Architecture& family) {
  Overrides result = with(tiny, {fmt::format("model.arch={}", family.name)});
  const bool latent = family.decoder.latent_attention;
  const auto add = [&](bool has, std::initializer_list<std::string> settings) {
    if (has) result = with(result, settings);
  };
  add(family.sparse, {"model.num_experts=4", "model.num_experts_per_tok=2"});
  add(family.sparse && !family.experts_of_mlp_width,
      {"model.moe_intermediate_size=16", fmt::format("model.mlp_only_layers=[{}]", latent ? 0 : 1)});
  add(!family.plain_heads && !latent, {"model.num_key_value_heads=2", "model.head_dim=8"});
  add(family.has_attention_bias, {"model.attention_bias=true"});
  add(family.has_mlp_bias, {"model.mlp_bias=true"});
  add(family.has_window, {"model.sliding_window=5"});
  add(family.has_partial_rotation, {"model.partial_rotary_factor=0.5"});
  add(family.has_shared_expert(), {"model.shared_expert_intermediate_size=32"});
  add(latent, {"model.kv_lora_rank=6", "model.qk_nope_head_dim=4", "model.qk_rope_head_dim=2",
               "model.v_head_dim=3", "model.n_group=2", "model.topk_group=1",
               "model.routed_scaling_factor=1.5", "model.num_experts_per_tok=1"});
  add(family.decoder.sigmoid_router, {"model.q_lora_rank=8", "model.router_bias_update_rate=0.01"});
  add(family.takes(&config::ModelSection::attn_logit_softcapping), {"model.attn_logit_softcapping=2"});
  add(family.takes(&config::ModelSection::final_logit_softcapping), {"model.final_logit_softcapping=3"});
  add(family.takes(&config::ModelSection::residual_multiplier),
      {"model.embedding_multiplier=3", "model.attention_multiplier=0.4", "model.residual_multiplier=0.5",
       "model.logits_scaling=1.5"});
  return result;
}

// Every head has its own keys unless the family says otherwise.
inline std::string family_job_text() {
  std::string text = small_job_text();
  const std::string heads = "num_key_value_heads = 2\nhead_dim = 8\n";
  return text.erase(text.find(heads), heads.size());
}

}  // namespace pptrain::test
