// The options of [model].
#include <algorithm>
#include <string>
#include <vector>

#include "core/config/families.h"
#include "core/config/options/sections.h"
#include "core/config/validate.h"

namespace pptrain::config {
namespace {

bool is_rotary(const JobConfig& job) {
  return has_rotary_embeddings(job.model);
}

bool has_plain_attention(const JobConfig& job) {
  return !takes(job.model, "kv_lora_rank");
}

bool has_intermediate_size(const JobConfig& job) {
  return has_experts_of_mlp_width(job.model) || has_dense_layers(job.model);
}

void add_model_sizes(const SectionFields<ModelSection>& model) {
  model("hidden_size", &ModelSection::hidden_size, "Width of the residual stream. 0: from hf_dir.")
      .between(0, max_size);
  model("intermediate_size", &ModelSection::intermediate_size,
        "Inner width of the MLP; in models with experts, of the dense layers' MLP; in mixtral and gpt_oss, "
        "of each expert. 0: from hf_dir.")
      .between(0, max_size)
      .only_if("layers that have an MLP, or the experts of mixtral or gpt_oss",
               {"model.decoder_sparse_step", "model.mlp_only_layers", "model.arch"}, has_intermediate_size);
  model("num_hidden_layers", &ModelSection::num_hidden_layers, "Transformer blocks. 0: from hf_dir.")
      .between(0, 1 << 16);
  model("num_attention_heads", &ModelSection::num_attention_heads, "Query heads. 0: from hf_dir.")
      .between(0, 1 << 16);
  model("num_key_value_heads", &ModelSection::num_key_value_heads,
        "Key and value heads; divides num_attention_heads. 0: from hf_dir, else num_attention_heads.")
      .between(0, 1 << 16)
      .only_if("an arch without latent attention", {"model.arch"}, has_plain_attention);
  model("head_dim", &ModelSection::head_dim,
        "Width of one head; even. 0: from hf_dir, else hidden_size / num_attention_heads.")
      .between(0, 1 << 16)
      .only_if("an arch without latent attention", {"model.arch"}, has_plain_attention);
  model("vocab_size", &ModelSection::vocab_size,
        "Rows of the embedding and of the head. Text files are bytes: 256. 0: from hf_dir.")
      .between(0, 1 << 28);
}

// Names are those of Hugging Face's Qwen3-MoE, if it has them.
void add_experts(const SectionFields<ModelSection>& model) {
  model("num_experts", &ModelSection::num_experts, "Experts of each sparse layer. 0: from hf_dir.")
      .between(0, 4096)
      .of_families();
  model("num_experts_per_tok", &ModelSection::num_experts_per_tok, "Experts per token. 0: from hf_dir.")
      .between(0, 4096)
      .of_families();
  model("moe_intermediate_size", &ModelSection::moe_intermediate_size,
        "Inner width of each expert. 0: from hf_dir.")
      .between(0, max_size)
      .of_families();
  model("shared_expert_intermediate_size", &ModelSection::shared_expert_intermediate_size,
        "Inner width of the MLP that every token of a sparse layer uses in addition to its experts. 0: from "
        "hf_dir.")
      .between(0, max_size)
      .of_families();
  model("swiglu_limit", &ModelSection::swiglu_limit,
        "Limits each expert's inner values: gate from above, up on both sides.")
      .above(0)
      .of_families();
  model("norm_topk_prob", &ModelSection::norm_topk_prob,
        "Divides the probabilities of a token's experts by their sum; mixtral and gpt_oss always do so.")
      .of_families();
  model("n_group", &ModelSection::n_group,
        "Number of expert groups, of equal size. A token uses topk_group of the groups.")
      .between(1, 4096)
      .of_families();
  model("topk_group", &ModelSection::topk_group, "Expert groups that a token's experts come from.")
      .between(1, 4096)
      .of_families();
  model("routed_scaling_factor", &ModelSection::routed_scaling_factor,
        "Multiplies the weights of a token's experts.")
      .above(0)
      .of_families();
  model("decoder_sparse_step", &ModelSection::decoder_sparse_step,
        "Layer i, counted from 1, has experts if this number divides i; the other layers have an MLP.")
      .between(1, 1 << 16)
      .of_families();
  model("mlp_only_layers", &ModelSection::mlp_only_layers,
        "Layers, counted from 0, that have an MLP and no experts; in deepseek_v2 and deepseek_v3 always the "
        "first ones.")
      .between(0, 1 << 16)
      .or_empty()
      .of_families();
  model("router_aux_loss_coef", &ModelSection::router_aux_loss_coef,
        "Coefficient of the loss that balances the experts of each sparse layer. The loss is num_experts * "
        "sum over experts of (choices / tokens) * (mean probability), without padding, over the microbatches "
        "of all data-parallel ranks together, summed over the sparse layers. transformers averages over the "
        "layers instead: its router_aux_loss_coef divided by the number of sparse layers has about the same "
        "effect. It changes gradients, not the reported loss. Never taken from hf_dir.")
      .between(0, 1000)
      .of_families()
      .decides(Effect::course);
  model("router_z_loss_coef", &ModelSection::router_z_loss_coef,
        "Coefficient of a loss that keeps each router's logits small: their mean squared logsumexp. It "
        "changes gradients, not the reported loss.")
      .between(0, 1000)
      .of_families()
      .decides(Effect::course);
  model(
      "router_bias_update_rate", &ModelSection::router_bias_update_rate,
      "Balances experts without a loss. In each step, the bias on an expert's probability falls by this "
      "much if its load is above the mean, and rises if it is below. The bias only decides which experts "
      "are chosen, and does not follow [lr_schedule]. 0: no bias. Most families' models in transformers have "
      "no such bias, and pptrain convert refuses those.")
      .between(0, 1)
      .of_families()
      .decides(Effect::course);
}

// Which tokens attention sees, and what rotates queries and keys. Names are those of Hugging Face's
// config.json.
void add_windows(const SectionFields<ModelSection>& model) {
  model("sliding_window", &ModelSection::sliding_window,
        "Keys that a token sees in layers with a sliding window, including its own. 0: from hf_dir, else no "
        "window.")
      .between(0, max_size)
      .of_families();
  model("layer_types", &ModelSection::layer_types,
        "sliding_attention or full_attention for each layer. Empty: full in every second layer of gemma2 and "
        "gpt_oss and in every sixth of gemma3_text, never in qwen2.")
      .one_of({"sliding_attention", "full_attention"})
      .or_empty()
      .only_if(
          "sliding_window > 0 and an arch whose layers may differ", {"model.sliding_window", "model.arch"},
          [](const JobConfig& j) { return j.model.sliding_window > 0 && takes(j.model, "layer_types"); });
  model("rope_local_base_freq", &ModelSection::rope_local_base_freq,
        "Base of the rotary frequencies in layers with a sliding window; the other layers use rope_theta.")
      .above(0)
      .of_families();
  model("partial_rotary_factor", &ModelSection::partial_rotary_factor,
        "Fraction of each head that rotary embeddings rotate: the first head_dim * partial_rotary_factor "
        "dims.")
      .above_up_to(0, 1)
      .of_families();
  model("no_rope_layers", &ModelSection::no_rope_layers,
        "For each layer: 1 with rotary embeddings, 0 without. Empty: every fourth layer has none.")
      .between(0, 1)
      .or_empty()
      .of_families();
}

// Factors and bounds of what layers compute. Names are those of Hugging Face's config.json.
void add_scales(const SectionFields<ModelSection>& model) {
  model("attn_logit_softcapping", &ModelSection::attn_logit_softcapping,
        "Bounds attention's scores s to c * tanh(s / c). 0: off.")
      .between(0, 1e6)
      .of_families();
  model("final_logit_softcapping", &ModelSection::final_logit_softcapping,
        "Bounds the logits in the same way. 0: off.")
      .between(0, 1e6)
      .of_families();
  model("query_pre_attn_scalar", &ModelSection::query_pre_attn_scalar,
        "Attention's scores are divided by the root of this number. 0: from hf_dir, else head_dim.")
      .between(0, max_size)
      .of_families();
  model("attention_multiplier", &ModelSection::attention_multiplier,
        "Attention's scores are multiplied by this number. 0: from hf_dir, else 1 / sqrt(head_dim).")
      .between(0, 1e6)
      .of_families();
  model("embedding_multiplier", &ModelSection::embedding_multiplier,
        "Embeddings are multiplied by this number.")
      .above(0)
      .of_families();
  model("residual_multiplier", &ModelSection::residual_multiplier,
        "Attention's and the MLP's results are multiplied by this number before they are added.")
      .above(0)
      .of_families();
  model("logits_scaling", &ModelSection::logits_scaling, "Logits are divided by this number.")
      .above(0)
      .of_families();
  model("use_parallel_residual", &ModelSection::use_parallel_residual,
        "true: attention and MLP read the same residual stream; both results are added to it. false: the MLP "
        "reads the stream plus attention's result.")
      .of_families();
}

// Latent attention. Names are those of Hugging Face's config.json.
void add_latent(const SectionFields<ModelSection>& model) {
  model("q_lora_rank", &ModelSection::q_lora_rank,
        "Width of the latent vector of a token's queries. 0: from hf_dir, else queries come from the "
        "residual stream.")
      .between(0, max_size)
      .of_families();
  model("kv_lora_rank", &ModelSection::kv_lora_rank,
        "Width of the latent vector of all heads' keys and values. 0: from hf_dir.")
      .between(0, max_size)
      .of_families();
  model("qk_nope_head_dim", &ModelSection::qk_nope_head_dim,
        "Dims of each head's query and key that are not rotated. 0: from hf_dir.")
      .between(0, 1 << 16)
      .of_families();
  model("qk_rope_head_dim", &ModelSection::qk_rope_head_dim,
        "Dims of each head's query and key that are rotated; even. 0: from hf_dir.")
      .between(0, 1 << 16)
      .of_families();
  model("v_head_dim", &ModelSection::v_head_dim,
        "Width of each head's value; at most qk_nope_head_dim + qk_rope_head_dim. 0: from hf_dir.")
      .between(0, 1 << 16)
      .of_families();
}

void add_yarn(const SectionFields<RopeScaling>& yarn) {
  yarn("beta_fast", &RopeScaling::beta_fast,
       "Frequencies with at least this many turns in the original context are not scaled.")
      .above(0);
  yarn("beta_slow", &RopeScaling::beta_slow, "Frequencies with at most this many turns are scaled in full.")
      .above(0);
  yarn("mscale", &RopeScaling::mscale,
       "With mscale_all_dim, changes the recommended attention_factor (DeepSeek). 0: not given.")
      .between(0, 100);
  yarn("mscale_all_dim", &RopeScaling::mscale_all_dim, "See mscale.").between(0, 100);
  yarn("truncate", &RopeScaling::truncate,
       "Rounds the bounds between scaled and unscaled frequencies to whole dims.");
}

}  // namespace

void add_model(std::vector<Option>& options) {
  SectionFields<ModelSection> model(
      options, "model", [](JobConfig& j) -> ModelSection& { return j.model; }, Effect::model);
  model("arch", &ModelSection::arch,
        "Architecture, by its name in transformers: llama for SmolLM2 and models built like Llama, phi3 for "
        "Phi-4-mini, gpt_neox for Pythia. With hf_dir, config.json gives the name.")
      .one_of(family_names());
  model("hf_dir", &ModelSection::hf_dir,
        "Hugging Face directory whose config.json describes the model. Keys of this section that fix the "
        "shape of the weights may then be left out; if given, they must agree. Other keys override "
        "config.json.")
      .path()
      .decides(Effect::none);
  model("init", &ModelSection::init,
        "Initial weights. random: from run.seed. hf: from hf_dir's model*.safetensors.")
      .decides(Effect::none);
  model("initializer_range", &ModelSection::initializer_range,
        "Standard deviation of the random initial weights.")
      .between(0, 10)
      .only_with("model.init", {"random"})
      .decides(Effect::none);
  add_model_sizes(model);
  model("rope_theta", &ModelSection::rope_theta, "Base of the rotary frequencies.")
      .above(0)
      .only_if("an arch with rotary embeddings", {"model.arch"}, is_rotary);
  model("rms_norm_eps", &ModelSection::rms_norm_eps,
        "Added to the mean square in every RMSNorm and to the variance in every LayerNorm.")
      .between(0, 1);
  model("tie_word_embeddings", &ModelSection::tie_word_embeddings,
        "The head uses the embedding's weight, even if the two are on different stages.");
  model("max_position_embeddings", &ModelSection::max_position_embeddings,
        "Longest sequence that the model is meant for. 0: from hf_dir, else train.seq_len.")
      .between(0, max_size)
      .decides(Effect::course);
  model("attention_bias", &ModelSection::attention_bias, "Biases in the q, k, v and o projections.");
  model("mlp_bias", &ModelSection::mlp_bias, "Biases in the MLP's projections (llama, smollm3, granite).");
  add_windows(model);
  add_scales(model);
  add_latent(model);
  add_experts(model);
}

void add_rope_scaling(std::vector<Option>& options) {
  SectionFields<RopeScaling> rope(
      options, "model.rope_scaling", [](JobConfig& j) -> RopeScaling& { return j.model.rope_scaling; },
      Effect::model);
  const std::string type = "model.rope_scaling.rope_type";
  const auto llama3 = rope.only_with(type, {"llama3"}), longrope = rope.only_with(type, {"longrope"});
  rope("rope_type", &RopeScaling::rope_type,
       "How rotary frequencies are scaled. default: not at all. linear: all divided by factor. dynamic: "
       "rope_theta rises for sequences beyond max_position_embeddings. llama3 (Llama 3.1) and yarn (arXiv "
       "2309.00071): the low ones divided. longrope (arXiv 2402.13753): each divided by its own factor.")
      .only_if("an arch with rotary embeddings", {"model.arch"}, is_rotary);
  rope("factor", &RopeScaling::factor, "Length of the context divided by the original length.")
      .at_least(1)
      .only_with(type, {"linear", "llama3", "dynamic", "yarn", "longrope"});
  llama3("low_freq_factor", &RopeScaling::low_freq_factor,
         "Wavelengths above original_max_position_embeddings / low_freq_factor are scaled in full.")
      .above(0);
  llama3("high_freq_factor", &RopeScaling::high_freq_factor,
         "Wavelengths below original_max_position_embeddings / high_freq_factor are not scaled.")
      .above(0);
  rope("original_max_position_embeddings", &RopeScaling::original_max_position_embeddings,
       "Context, in tokens, that the model was first trained with.")
      .between(1, max_size)
      .only_with(type, {"llama3", "yarn", "longrope"});
  add_yarn(rope.only_with(type, {"yarn"}));
  rope("attention_factor", &RopeScaling::attention_factor,
       "Multiplies rotated queries and keys. 0: as the method's paper recommends for factor.")
      .between(0, 100)
      .only_with(type, {"yarn", "longrope"});
  longrope("short_factor", &RopeScaling::short_factor,
           "A divisor of each frequency, for sequences of up to original_max_position_embeddings tokens.")
      .above(0)
      .or_empty();
  longrope("long_factor", &RopeScaling::long_factor, "The same for longer sequences.").above(0).or_empty();
}

}  // namespace pptrain::config
