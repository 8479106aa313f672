"""config.json of published models, for tests of the models that users take first: facts as published, smaller sizes.

`config(NAME)` is such a file's content; published_directories.py writes it with weights. Only the keys in SHRUNK are smaller than
published (widths, heads, layers, experts, the vocabulary). Unchanged are the form of the file (rope_scaling with "type", absent keys,
lists of layers), rotary settings with their lengths, ties, biases, windows, routing and epsilons. Special tokens beyond the vocabulary
are moved to its end.
"""

import copy

SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")
SILU = {"hidden_act": "silu", "initializer_range": 0.02, "use_cache": True}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "attention_dropout": 0.0, "mlp_bias": False,
         "bos_token_id": 128000, "max_position_embeddings": 131072, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
         "torch_dtype": "bfloat16", "vocab_size": 128256, **SILU}
LLAMA_ROPE = {"high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}
PHI = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "attention_bias": False, "attention_dropout": 0.0, "embd_pdrop": 0.0,
       "resid_pdrop": 0.0, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32, "max_position_embeddings": 131072,
       "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 262144,
       "torch_dtype": "bfloat16", **SILU}
PHI_3_LONG = [
    1.0800000429153442, 1.1100000143051147, 1.1399999856948853, 1.340000033378601, 1.5899999141693115, 1.600000023841858, 1.6200000047683716,
    2.620000123977661, 3.2300000190734863, 3.2300000190734863, 4.789999961853027, 7.400000095367432, 7.700000286102295, 9.09000015258789,
    12.199999809265137, 17.670000076293945, 24.46000099182129, 28.57000160217285, 30.420001983642578, 30.840002059936523, 32.590003967285156,
    32.93000411987305, 42.320003509521484, 44.96000289916992, 50.340003967285156, 50.45000457763672, 57.55000305175781, 57.93000411987305,
    58.21000289916992, 60.1400032043457, 62.61000442504883, 62.62000274658203, 62.71000289916992, 63.1400032043457, 63.1400032043457,
    63.77000427246094, 63.93000411987305, 63.96000289916992, 63.970001220703125, 64.02999877929688, 64.06999969482422, 64.08000183105469,
    64.12000274658203, 64.41000366210938, 64.4800033569336, 64.51000213623047, 64.52999877929688, 64.83999633789062]
PHI_3_SHORT = [
    1.0, 1.0199999809265137, 1.0299999713897705, 1.0299999713897705, *[1.0499999523162842] * 5, 1.0699999332427979, 1.0999999046325684,
    1.1099998950958252, 1.1599998474121094, 1.1599998474121094, 1.1699998378753662, 1.2899998426437378, 1.339999794960022, 1.679999828338623,
    1.7899998426437378, 1.8199998140335083, 1.8499997854232788, 1.8799997568130493, 1.9099997282028198, 1.9399996995925903, 1.9899996519088745,
    *[2.0199997425079346] * 6, *[2.0299997329711914] * 9, 2.0799996852874756, 2.0899996757507324, 2.189999580383301, 2.2199995517730713,
    2.5899994373321533, 2.729999542236328, 2.749999523162842, 2.8399994373321533]
PHI_4_LONG = [
    1, 1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897, 1.956131817, 2.187582649, 2.446418898, 2.735880826, 3.059592084,
    3.421605075, 3.826451687, 4.279200023, 4.785517845, 5.351743533, 5.984965424, 6.693110555, 7.485043894, 8.370679318, 9.36110372, 10.4687158,
    11.70738129, 13.09260651, 14.64173252, 16.37415215, 18.31155283, 20.47818807, 22.90118105, 25.61086418, 28.64115884, 32.03, 32.1, 32.13,
    32.23, 32.6, 32.61, 32.64, 32.66, 32.7, 32.71, 32.93, 32.97, 33.28, 33.49, 33.5, 44.16, 47.77]
QWEN = {"attention_dropout": 0.0, "bos_token_id": 151643, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "torch_dtype": "bfloat16",
        "use_sliding_window": False, **SILU}
QWEN3 = {**QWEN, "attention_bias": False, "eos_token_id": 151645, "head_dim": 128, "max_position_embeddings": 40960, "rope_scaling": None,
         "sliding_window": None, "vocab_size": 151936}
GEMMA_3 = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "attention_bias": False, "attention_dropout": 0.0,
           "attn_logit_softcapping": None, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 106],
           "final_logit_softcapping": None, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "initializer_range": 0.02, "pad_token_id": 0,
           "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_theta": 1000000, "sliding_window_pattern": 6,
           "torch_dtype": "bfloat16", "use_cache": True}
DEEPSEEK = {"attention_bias": False, "attention_dropout": 0.0, "aux_loss_alpha": 0.001, "kv_lora_rank": 512, "max_position_embeddings": 163840,
            "moe_layer_freq": 1, "pretraining_tp": 1, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_theta": 10000,
            "seq_aux": True, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "v_head_dim": 128, **SILU}
DEEPSEEK_ROPE = {"beta_fast": 32, "beta_slow": 1, "factor": 40, "original_max_position_embeddings": 4096, "type": "yarn"}

# Without quantization_config, since conversions to bfloat16 leave it out (DeepSeek-V3's is fp8, gpt-oss's mxfp4).
PUBLISHED = {
    "Llama-3.1-8B": {**LLAMA, "eos_token_id": 128001, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
                     "num_hidden_layers": 32, "num_key_value_heads": 8, "rope_scaling": {"factor": 8.0, **LLAMA_ROPE}, "tie_word_embeddings": False},
    "Llama-3.2-1B-Instruct": {**LLAMA, "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192,
                              "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
                              "rope_scaling": {"factor": 32.0, **LLAMA_ROPE}, "tie_word_embeddings": True},
    "Phi-3.5-mini-instruct": {**PHI, "bos_token_id": 1, "eos_token_id": 32000, "pad_token_id": 32000, "num_attention_heads": 32,
                              "num_key_value_heads": 32, "rope_scaling": {"long_factor": PHI_3_LONG, "short_factor": PHI_3_SHORT, "type": "longrope"},
                              "tie_word_embeddings": False, "vocab_size": 32064},
    "Phi-4-mini-instruct": {**PHI, "bos_token_id": 199999, "eos_token_id": 199999, "pad_token_id": 199999, "full_attn_mod": 1, "interpolate_factor": 1,
                            "lm_head_bias": False, "mlp_bias": False, "num_attention_heads": 24, "num_key_value_heads": 8,
                            "partial_rotary_factor": 0.75, "rope_scaling": {"long_factor": PHI_4_LONG, "short_factor": [1.0] * 48, "type": "longrope"},
                            "tie_word_embeddings": True, "vocab_size": 200064},
    "gemma-3-1b": {**GEMMA_3, "hidden_size": 1152, "intermediate_size": 6912, "max_position_embeddings": 32768, "num_attention_heads": 4,
                   "num_hidden_layers": 26, "num_key_value_heads": 1, "rope_scaling": None, "sliding_window": 512, "vocab_size": 262144},
    # text_config of the model with images; it leaves out the defaults of its class.
    "gemma-3-4b-text": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
                        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024, "num_attention_heads": 8,
                        "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208},
    # The rope_scaling that its model card adds for long texts.
    "Qwen2.5-7B-Instruct-yarn": {**QWEN, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "eos_token_id": 151645, "hidden_size": 3584,
                                 "intermediate_size": 18944, "max_position_embeddings": 32768, "max_window_layers": 28, "num_attention_heads": 28,
                                 "num_hidden_layers": 28, "num_key_value_heads": 4, "sliding_window": 131072, "tie_word_embeddings": False,
                                 "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}, "vocab_size": 152064},
    "Qwen3-0.6B": {**QWEN3, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
                   "max_window_layers": 28, "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
                   "tie_word_embeddings": True},
    "Qwen3-30B-A3B": {**QWEN3, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "decoder_sparse_step": 1, "hidden_size": 2048,
                      "intermediate_size": 6144, "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": True,
                      "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
                      "output_router_logits": False, "router_aux_loss_coef": 0.001, "tie_word_embeddings": False},
    "Qwen1.5-MoE-A2.7B": {**QWEN, "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "decoder_sparse_step": 1,
                          "eos_token_id": 151643, "hidden_size": 2048, "intermediate_size": 5632, "max_position_embeddings": 8192,
                          "max_window_layers": 21, "moe_intermediate_size": 1408, "norm_topk_prob": False, "num_attention_heads": 16,
                          "num_experts": 60, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 16,
                          "output_router_logits": False, "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 5632,
                          "sliding_window": 32768, "tie_word_embeddings": False, "vocab_size": 151936},
    "gpt-oss-20b": {**SILU, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True, "attention_dropout": 0.0,
                    "eos_token_id": 200002, "pad_token_id": 199999, "experts_per_token": 4, "head_dim": 64, "hidden_size": 2880,
                    "initial_context_length": 4096, "intermediate_size": 2880, "layer_types": ["sliding_attention", "full_attention"] * 12,
                    "max_position_embeddings": 131072, "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
                    "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": False, "rms_norm_eps": 1e-05,
                    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                                     "rope_type": "yarn", "truncate": False},
                    "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": False,
                    "vocab_size": 201088},
    "DeepSeek-V2-Lite": {**DEEPSEEK, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "bos_token_id": 100000,
                         "eos_token_id": 100001, "first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 10944,
                         "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": False,
                         "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16, "q_lora_rank": None,
                         "rope_scaling": {**DEEPSEEK_ROPE, "mscale": 0.707, "mscale_all_dim": 0.707}, "routed_scaling_factor": 1.0,
                         "scoring_func": "softmax", "topk_group": 1, "topk_method": "greedy", "vocab_size": 102400},
    "DeepSeek-V3": {**DEEPSEEK, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "bos_token_id": 0, "eos_token_id": 1,
                    "ep_size": 1, "first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
                    "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 128,
                    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
                    "q_lora_rank": 1536, "rope_scaling": {**DEEPSEEK_ROPE, "mscale": 1.0, "mscale_all_dim": 1.0}, "routed_scaling_factor": 2.5,
                    "scoring_func": "sigmoid", "topk_group": 4, "topk_method": "noaux_tc", "vocab_size": 129280},
    "SmolLM3-3B": {**SILU, "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "attention_bias": False, "attention_dropout": 0.0,
                   "bos_token_id": 128000, "eos_token_id": 128012, "pad_token_id": 128004, "hidden_size": 2048, "intermediate_size": 11008,
                   "layer_types": ["full_attention"] * 36, "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": False,
                   "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9, "num_attention_heads": 16, "num_hidden_layers": 36,
                   "num_key_value_heads": 4, "pretraining_tp": 2, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 5000000.0,
                   "sliding_window": None, "torch_dtype": "bfloat16", "use_sliding_window": False, "vocab_size": 128256},
    "Mistral-7B-v0.1": {**SILU, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "bos_token_id": 1, "eos_token_id": 2,
                        "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32,
                        "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
                        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 32000},
    "Mixtral-8x7B-v0.1": {**SILU, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "attention_dropout": 0.0, "bos_token_id": 1,
                          "eos_token_id": 2, "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
                          "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
                          "num_local_experts": 8, "output_router_logits": False, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
                          "router_aux_loss_coef": 0.02, "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
                          "vocab_size": 32000},
    "OLMo-2-1124-7B": {**SILU, "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "attention_bias": False, "attention_dropout": 0.0,
                       "eos_token_id": 100257, "pad_token_id": 100277, "hidden_size": 4096, "intermediate_size": 11008,
                       "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
                       "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 500000, "tie_word_embeddings": False, "torch_dtype": "float32",
                       "use_cache": False, "vocab_size": 100352},
    "gemma-2-2b": {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "attention_bias": False, "attention_dropout": 0.0,
                   "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
                   "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
                   "hidden_size": 2304, "initializer_range": 0.02, "intermediate_size": 9216, "max_position_embeddings": 8192,
                   "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0, "query_pre_attn_scalar": 256,
                   "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096, "torch_dtype": "float32", "use_cache": True,
                   "vocab_size": 256000},
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new", "attn_pdrop": 0.1, "bos_token_id": 50256,
             "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "n_ctx": 1024, "n_embd": 768,
             "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1,
             "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True, "vocab_size": 50257},
    "pythia-160m": {"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu",
                    "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-05,
                    "max_position_embeddings": 2048, "num_attention_heads": 12, "num_hidden_layers": 12, "rotary_emb_base": 10000,
                    "rotary_pct": 0.25, "tie_word_embeddings": False, "torch_dtype": "float16", "use_cache": True, "use_parallel_residual": True,
                    "vocab_size": 50304},
}

VOCAB = 320  # all bytes, and some
# 8 heads of 16 on 2 pairs of keys and values.
GROUPED = {"hidden_size": 128, "intermediate_size": 176, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2}
EACH = {**GROUPED, "num_key_value_heads": 8}  # each head has its own keys and values
LATENT = {**EACH, "kv_lora_rank": 40, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 20, "moe_intermediate_size": 48}
SHRUNK = {
    "Llama-3.1-8B": GROUPED,
    "Llama-3.2-1B-Instruct": {**GROUPED, "head_dim": 16},
    # Heads as wide as published, since there is a factor for each pair of dimensions.
    "Phi-3.5-mini-instruct": {"hidden_size": 192, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2},
    "Phi-4-mini-instruct": {"hidden_size": 768, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2},
    "gemma-3-1b": {**GROUPED, "num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32},
    "gemma-3-4b-text": {**GROUPED, "num_hidden_layers": 7, "num_attention_heads": 4, "head_dim": 32},
    "Qwen2.5-7B-Instruct-yarn": GROUPED,
    "Qwen3-0.6B": {**GROUPED, "num_attention_heads": 4, "head_dim": 48},
    "Qwen3-30B-A3B": {**GROUPED, "head_dim": 24, "moe_intermediate_size": 48, "num_experts": 16},
    "Qwen1.5-MoE-A2.7B": {**EACH, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 176, "num_experts": 12},
    "gpt-oss-20b": {**GROUPED, "intermediate_size": 128, "num_hidden_layers": 4, "head_dim": 24, "num_local_experts": 8},
    "DeepSeek-V2-Lite": {**LATENT, "n_routed_experts": 12},
    "DeepSeek-V3": {**LATENT, "q_lora_rank": 56, "num_hidden_layers": 5, "n_routed_experts": 32},
    "SmolLM3-3B": {**GROUPED, "num_hidden_layers": 4},
    "Mistral-7B-v0.1": GROUPED,
    "Mixtral-8x7B-v0.1": {**GROUPED, "num_local_experts": 4},
    "OLMo-2-1124-7B": EACH,
    "gemma-2-2b": {**GROUPED, "num_attention_heads": 4, "head_dim": 32},
    "gpt2": {"n_embd": 128, "n_head": 8, "n_layer": 3},
    "pythia-160m": {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8},
}


def config(name, **changes):
    """The content of config.json; `changes` are keys of it."""
    facts = {**copy.deepcopy(PUBLISHED[name]), **SHRUNK[name], "vocab_size": VOCAB, **changes}
    layers = facts.get("num_hidden_layers", facts.get("n_layer"))
    for key in ("layer_types", "no_rope_layers"):
        if key in facts:
            facts[key] = facts[key][:layers]
    move_special_tokens(facts)
    return facts


def move_special_tokens(facts):
    """Ids beyond the vocabulary, in their order, become its last ones."""
    lists = {key: facts[key] if isinstance(facts[key], list) else [facts[key]] for key in SPECIAL if facts.get(key) is not None}
    beyond = sorted({token for tokens in lists.values() for token in tokens if token >= facts["vocab_size"]}, reverse=True)
    place = {token: facts["vocab_size"] - 1 - i for i, token in enumerate(beyond)}
    for key, tokens in lists.items():
        moved = [place.get(token, token) for token in tokens]
        facts[key] = moved if isinstance(facts[key], list) else moved[0]
