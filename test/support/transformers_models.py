"""Shared by tests against models of transformers."""

import math

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func


# Families in addition to Llama, Qwen3 and Mixtral, each with its own features at a test's sizes: 3 layers or more of
# hidden_size 72, 6 heads, 2 key-value heads, vocab_size 131, max_position_embeddings 256.
LONGROPE = {"rope_type": "longrope", "rope_theta": 9000.0, "partial_rotary_factor": 0.75,
            "short_factor": [1.0, 1.1, 1.3, 1.2, 1.5, 1.25], "long_factor": [1.5, 2.0, 2.5, 3.5, 6.0, 9.0]}
HEADS = {"num_key_value_heads": 2, "head_dim": 20}  # 6 * 20 != 72
LATENT = {"num_key_value_heads": 6, "kv_lora_rank": 20, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 14, "n_routed_experts": 8,
          "n_group": 4, "topk_group": 2, "n_shared_experts": 2, "moe_intermediate_size": 44, "first_k_dense_replace": 1}
FAMILIES = {
    "qwen2": {"num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    "mistral": {**HEADS, "sliding_window": 9},
    "gemma2": {**HEADS, "sliding_window": 6, "query_pre_attn_scalar": 30, "attn_logit_softcapping": 3.0,
               "final_logit_softcapping": 5.0},
    "gemma3_text": {**HEADS, "sliding_window": 6, "query_pre_attn_scalar": 30, "layer_types":
                    ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]},
    "olmo2": {"num_key_value_heads": 2, "attention_bias": True},
    "phi3": {"hidden_size": 96, "num_key_value_heads": 2, "rope_parameters": LONGROPE, "sliding_window": 11,
             "original_max_position_embeddings": 16},
    "smollm3": {"num_key_value_heads": 2, "no_rope_layers": [1, 0, 1, 0], "mlp_bias": True},
    "granite": {"num_key_value_heads": 2, "embedding_multiplier": 3.0, "attention_multiplier": 0.2,
                "residual_multiplier": 0.4, "logits_scaling": 1.7, "attention_bias": True},
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "qwen2_moe": {"num_key_value_heads": 2, "num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 44,
                  "shared_expert_intermediate_size": 36, "mlp_only_layers": [1]},
    "gpt_oss": {**HEADS, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 6, "swiglu_limit": 1.5,
                "rope_parameters": {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "truncate": False,
                                    "original_max_position_embeddings": 16}},
    "deepseek_v2": {**LATENT, "q_lora_rank": None, "num_experts_per_tok": 2, "routed_scaling_factor": 1.5,
                    "topk_method": "group_limited_greedy"},
    "deepseek_v3": {**LATENT, "q_lora_rank": 28, "num_experts_per_tok": 3, "attention_bias": True,
                    "rope_parameters": {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "mscale": 1.0,
                                        "mscale_all_dim": 0.7, "original_max_position_embeddings": 16}},
    "starcoder2": {"num_key_value_heads": 2, "sliding_window": 8, "tie_word_embeddings": False},
    "gpt_neox": {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}},
}


def build_family(name, layers=3, **changes):
    """A model of one of the families with random weights, in float32."""
    sizes = {"hidden_size": 72, "intermediate_size": 104, "num_hidden_layers": layers, "num_attention_heads": 6,
             "vocab_size": 131, "max_position_embeddings": 256, "initializer_range": 0.1, **FAMILIES[name], **changes}
    if name == "gpt2":
        sizes["n_inner"] = sizes.pop("intermediate_size")
    for key in ("layer_types", "no_rope_layers"):
        if key in sizes:
            sizes[key] = sizes[key][:layers]
    config = AutoConfig.for_model(name, **sizes, attn_implementation="eager", bos_token_id=1, eos_token_id=2,
                                  pad_token_id=None)
    config._experts_implementation = "eager"  # the others do not support float64
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    shake_norms(model)
    if name == "gpt_oss":
        keep_from_clamp(model)
    return model


def keep_from_clamp(model):
    """Moves what gpt-oss' experts clamp away from the limit, where the gradient jumps: a tenth is far below, a tenth far above."""
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.experts.gate_up_proj.mul_(0.3)
            bias = layer.mlp.experts.gate_up_proj_bias
            draw = torch.rand(bias.shape)
            bias.mul_(0.3).add_(((draw > 0.9).float() - (draw < 0.1).float()) * 2 * model.config.swiglu_limit)


def shake_norms(model):
    """Adds noise to norms and biases: they start as ones and zeros, which would hide mistakes."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.add_(torch.randn_like(buffer) * 0.02)


def balance_loss(model, logits, coefficient, attention_mask=None):
    """The balance loss of each layer separately: transformers' own takes means over the tokens of all layers together."""
    return coefficient * sum(
        load_balancing_loss_func((layer,), layer.shape[-1], model.config.num_experts_per_tok, attention_mask)
        for layer in logits)


class ClosestTie:
    """The least distance, in nats, between a token's last chosen expert and the next one, over all routing of a model; and the
    least distance of a value that gpt-oss' experts clamp to its limit, where the gradient jumps."""

    def __init__(self, model):
        self.distance = self.of_clamp = math.inf
        for name, module in model.named_modules():
            if name.endswith(("mlp.gate", "mlp.router")):
                module.register_forward_hook(lambda gate, _, output: self.look(gate.top_k, output[0]))
            if hasattr(module, "limit") and hasattr(module, "_apply_gate"):
                module._apply_gate = self.watch(module._apply_gate, module.limit)

    def watch(self, apply, limit):
        def watched(gate_up):
            values = gate_up.detach()
            self.of_clamp = min(self.of_clamp, (values - limit).abs().min().item(), (values[..., 1::2] + limit).abs().min().item())
            return apply(gate_up)
        return watched

    def look(self, chosen, logits):
        order = logits.detach().sort(-1, descending=True).values
        self.distance = min(self.distance, (order[:, chosen - 1] - order[:, chosen]).min().item())
