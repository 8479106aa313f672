"""pptrain reads a config.json, and the defaults for its missing keys, as transformers does.

    hf_facts_test.py MODEL_ORACLE    (the executable of oracle_main.cpp)

Defaults are read from transformers' own classes, so that a change there is seen here. Every key that a class knows is
in one of the tables below: compared, of no use to a model that trains here, or refused if it is not off.
"""

import json
import os
import subprocess
import sys
import tempfile
import tomllib
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"

from transformers import (AutoConfig, DeepseekV2Config, DeepseekV3Config, Gemma2Config, Gemma3TextConfig, GPT2Config, GPTNeoXConfig, GptOssConfig,
                          GraniteConfig,
                          LlamaConfig, MistralConfig, MixtralConfig, Olmo2Config, Phi3Config, Qwen2Config, Qwen2MoeConfig, Qwen3Config,
                          Qwen3MoeConfig, SmolLM3Config, Starcoder2Config)
from transformers.utils.logging import set_verbosity_error

set_verbosity_error()
ORACLE = sys.argv.pop(1)
CLASSES = {"llama": LlamaConfig, "mixtral": MixtralConfig, "qwen3": Qwen3Config, "qwen3_moe": Qwen3MoeConfig,
           "qwen2": Qwen2Config, "mistral": MistralConfig, "gemma2": Gemma2Config, "gemma3_text": Gemma3TextConfig,
           "olmo2": Olmo2Config, "phi3": Phi3Config, "smollm3": SmolLM3Config, "granite": GraniteConfig,
           "gpt2": GPT2Config, "gpt_neox": GPTNeoXConfig, "qwen2_moe": Qwen2MoeConfig, "gpt_oss": GptOssConfig,
           "deepseek_v2": DeepseekV2Config, "deepseek_v3": DeepseekV3Config, "starcoder2": Starcoder2Config}
SPARSE = ("mixtral", "qwen3_moe", "qwen2_moe", "gpt_oss", "deepseek_v2", "deepseek_v3")
# Keys that a config.json must have. No size is any class's default, nor equal to another size here.
SIZES = {"hidden_size": 192, "intermediate_size": 416, "num_hidden_layers": 6, "num_attention_heads": 24,
         "vocab_size": 1000}
GPT2_NAMES = {"hidden_size": "n_embd", "intermediate_size": "n_inner", "num_hidden_layers": "n_layer",
              "num_attention_heads": "n_head"}
# Keys that are compared, each with a value that is no class's default.
FACTS = {
    "hidden_size": 384, "intermediate_size": 320, "num_hidden_layers": 5, "num_attention_heads": 12,
    "vocab_size": 999, "num_key_value_heads": 6, "head_dim": 10, "max_position_embeddings": 777,
    "initializer_range": 0.03, "rms_norm_eps": 1e-4, "tie_word_embeddings": True, "attention_bias": True,
    "mlp_bias": True, "num_experts_per_tok": 3, "num_experts": 12, "num_local_experts": 14,
    "moe_intermediate_size": 96, "norm_topk_prob": True, "decoder_sparse_step": 2, "mlp_only_layers": [1, 3],
    "n_embd": 384, "n_inner": 320, "n_layer": 5, "n_head": 8, "n_positions": 777, "layer_norm_epsilon": 1e-4,
    "layer_norm_eps": 1e-4, "norm_epsilon": 1e-4, "query_pre_attn_scalar": 99, "attn_logit_softcapping": 7.0, "final_logit_softcapping": 9.0,
    "embedding_multiplier": 3.0, "attention_multiplier": 0.3, "residual_multiplier": 0.3, "logits_scaling": 3.0,
    "q_lora_rank": 44, "kv_lora_rank": 45, "qk_nope_head_dim": 20, "qk_rope_head_dim": 12, "v_head_dim": 22,
    "n_routed_experts": 24, "routed_scaling_factor": 1.75, "n_group": 2, "topk_group": 2, "first_k_dense_replace": 2,
    "n_shared_experts": 4,
    "shared_expert_intermediate_size": 77, "swiglu_limit": 5.0, "use_parallel_residual": False, "no_rope_layers": [1, 1, 0, 1, 0, 1], "no_rope_layer_interval": 3,
}
# The families whose layers have these.
BIASED = {"llama", "qwen3", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gemma2", "gemma3_text", "olmo2", "smollm3", "granite", "gpt_neox",
          "gpt_oss"}
MLP_BIASED = {"llama", "smollm3", "granite"}
CAPPED = ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping")
LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
          "moe_intermediate_size", "routed_scaling_factor")
OWN = {"gemma2": CAPPED, "gemma3_text": CAPPED[::2], "smollm3": ("no_rope_layers",),
       "granite": ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"),
       "deepseek_v2": LATENT, "deepseek_v3": LATENT + ("norm_topk_prob", "n_group", "topk_group"),
       "gpt_neox": ("use_parallel_residual",), "qwen2_moe": ("shared_expert_intermediate_size",),
       "gpt_oss": ("swiglu_limit",)}
WINDOWED = {"qwen2", "mistral", "gemma2", "gemma3_text", "phi3", "gpt_oss", "starcoder2"}
HALVES = ["full_attention", "sliding_attention"] * 3
WINDOWS = {
    "qwen2": [{"sliding_window": 64}, {"use_sliding_window": True, "max_window_layers": 2},
              {"use_sliding_window": True, "sliding_window": 64, "layer_types": HALVES},
              {"use_sliding_window": True, "sliding_window": 64}],
    "mistral": [{"sliding_window": 64}, {"sliding_window": None}],
    "phi3": [{"sliding_window": 64}, {"sliding_window": None}],
    "starcoder2": [{"sliding_window": 64}, {"sliding_window": None}],
    "gemma2": [{"sliding_window": 64}, {"sliding_window": 64, "layer_types": HALVES}],
    "gemma3_text": [{"sliding_window": 64}, {"layer_types": HALVES}, {"sliding_window_pattern": 2}],
}
# Keys with a value that makes transformers compute something that pptrain does not have.
REFUSED = {"hidden_act": "relu", "hidden_activation": "relu", "activation_function": "relu",
           "use_bidirectional_attention": True, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "hidden_dropout": 0.1, "residual_dropout": 0.1, "embedding_dropout": 0.1, "use_bias": False,
           "qkv_bias": False, "rope_interleave": False, "topk_method": "noaux_tc", "attn_logit_softcapping": 3.0, "swiglu_alpha": 1.5, "scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True, "add_cross_attention": True,
           "attention_dropout": 0.1, "use_sliding_window": True, "router_jitter_noise": 0.1,
           "partial_rotary_factor": 0.5, "quantization_config": {"bits": 4}}
# Refused by itself in mixtral; in the others it needs use_sliding_window.
WINDOW = {"sliding_window": 64}
# Keys for text, for the library, or for its own losses: the model's computation from tokens stays the same.
# layer_types only says which layers would have the sliding window.
IDLE = {
    "transformers_version", "architectures", "output_hidden_states", "return_dict", "dtype", "chunk_size_feed_forward",
    "is_encoder_decoder", "id2label", "label2id", "problem_type", "use_cache", "pad_token_id", "bos_token_id",
    "eos_token_id", "pretraining_tp", "_name_or_path", "model_type", "output_attentions", "max_window_layers",
    "layer_types", "output_router_logits", "router_aux_loss_coef", "_sliding_window_pattern", "is_decoder",
    "classifier_dropout", "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "attn_pdrop",  # with the like, gpt2's dropout: only in transformers' training
    "original_max_position_embeddings",
    "num_nextn_predict_layers", "num_mtp_layers",  # layers that a base model does not have
    "qk_head_dim",  # follows from its parts
}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.5, "high_freq_factor": 5.0}
LINEAR = {"rope_type": "linear", "factor": 2.0}
PLAIN = {"rope_type": "default", "rope_theta": 33000.0}
ROPES = [
    {"rope_theta": 20000.0},
    {"rope_parameters": PLAIN},
    {"rope_parameters": {"rope_type": "default"}, "rope_theta": 20000.0},
    {"rope_parameters": PLAIN, "rope_theta": 20000.0},
    {"rope_parameters": LINEAR},
    {"rope_scaling": LINEAR},
    {"rope_scaling": {"type": "linear", "factor": 3.0}, "rope_theta": 20000.0},
    {"rope_scaling": None, "rope_parameters": PLAIN},
    {"rope_scaling": {}, "rope_parameters": PLAIN},
    {"rope_scaling": LINEAR, "rope_parameters": PLAIN},
    {"rope_scaling": LINEAR, "rope_parameters": PLAIN, "rope_theta": 20000.0},
    {"rope_scaling": {**LINEAR, "rope_theta": 44000.0}, "rope_parameters": {**PLAIN, **LLAMA3}},
    {"rope_scaling": LLAMA3, "max_position_embeddings": 4096},
    {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 1024}, "max_position_embeddings": 4096},
    {"rope_scaling": LLAMA3, "original_max_position_embeddings": 2048, "max_position_embeddings": 4096},
    {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 1024},
     "original_max_position_embeddings": 2048, "max_position_embeddings": 4096},
    {"rope_parameters": {**LINEAR, "original_max_position_embeddings": 1024}, "partial_rotary_factor": 1.0},
]


def rope_facts(config, facts):
    config.standardize_rope_params()  # as a model does with its configuration
    rope = config.rope_parameters
    if config.model_type == "gemma3_text":
        facts["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    facts["rope_theta"] = rope["rope_theta"]
    if config.model_type in ("phi3", "gpt_neox"):
        facts["partial_rotary_factor"] = rope["partial_rotary_factor"]
    facts["rope_scaling"] = {"rope_type": rope["rope_type"]}
    of_type = {"default": (), "linear": ("factor",), "dynamic": ("factor",),
               "yarn": ("factor", "original_max_position_embeddings", "beta_fast", "attention_factor"),
               "longrope": ("original_max_position_embeddings", "short_factor", "long_factor"),
               "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")}
    for key in of_type[rope["rope_type"]]:
        facts["rope_scaling"][key] = rope[key]


def window_facts(config, facts):
    types = getattr(config, "layer_types", None) or []
    window = config.sliding_window or 0
    if config.model_type == "qwen2" and "sliding_attention" not in types:
        window = 0
    facts["sliding_window"] = window
    if window and types:
        facts["layer_types"] = types


def theirs(config):
    """transformers' configuration as [model], with our keys."""
    heads, kind = config.num_attention_heads, config.model_type
    facts = {key: getattr(config, key) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
                                                   "max_position_embeddings", "initializer_range", "tie_word_embeddings")}
    facts["intermediate_size"] = (config.n_inner or 4 * config.n_embd) if kind == "gpt2" else config.intermediate_size
    eps = {"gpt2": "layer_norm_epsilon", "gpt_neox": "layer_norm_eps", "starcoder2": "norm_epsilon"}.get(kind, "rms_norm_eps")
    facts["rms_norm_eps"] = getattr(config, eps)
    facts["arch"] = kind
    facts["num_key_value_heads"] = getattr(config, "num_key_value_heads", None) or heads
    facts["head_dim"] = getattr(config, "head_dim", None) or config.hidden_size // heads
    if kind in ("deepseek_v2", "deepseek_v3"):
        facts["head_dim"] = config.qk_nope_head_dim + config.qk_rope_head_dim
        facts["num_key_value_heads"] = heads  # whatever the file says
        facts["mlp_only_layers"] = list(range(config.first_k_dense_replace))
        facts["shared_expert_intermediate_size"] = config.n_shared_experts * config.moe_intermediate_size
    # transformers' Mixtral has no biases, and Qwen3's MLPs have none, whatever the file says.
    facts["attention_bias"] = kind in BIASED and config.attention_bias
    facts["mlp_bias"] = kind in MLP_BIASED and config.mlp_bias
    if kind in SPARSE:
        facts["num_experts"] = config.n_routed_experts if kind.startswith("deepseek") else config.num_experts
        facts["num_experts_per_tok"] = config.num_experts_per_tok
    if kind in ("qwen3_moe", "qwen2_moe"):
        for key in ("moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"):
            facts[key] = getattr(config, key)
    for key in OWN.get(kind, ()):
        facts[key] = getattr(config, key) or 0
    if kind in WINDOWED:
        window_facts(config, facts)
    if kind != "gpt2":
        rope_facts(config, facts)
    return facts


class HfFactsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.cases = []  # directory, config.json

    def add(self, name, **changes):
        sizes = {GPT2_NAMES.get(key, key): value for key, value in SIZES.items()} if name == "gpt2" else SIZES
        if name == "gpt_oss":  # its default is a whole YaRN, which is refused
            sizes = {**sizes, "rope_parameters": {"rope_type": "default"}}
        if name == "deepseek_v2":  # its class has no default
            sizes = {**sizes, "num_experts_per_tok": 2}
        config = {"model_type": name, **sizes, **changes}
        folder = os.path.join(self.folder.name, str(len(self.cases)))
        os.mkdir(folder)
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(config, file)
        self.cases.append((folder, config))

    def read(self):
        """All cases, in one process: [model], or the refusal."""
        subprocess.run([ORACLE, "facts", *(folder for folder, _ in self.cases)], check=True)
        for folder, config in self.cases:
            refused = os.path.join(folder, "refused.txt")
            if os.path.exists(refused):
                with open(refused) as file:
                    yield folder, config, None, file.read()
            else:
                with open(os.path.join(folder, "job.toml"), "rb") as file:
                    yield folder, config, tomllib.load(file)["model"], ""

    def check(self):
        compared = 0
        for folder, config, ours, refused in self.read():
            with self.subTest(config=config):
                self.assertEqual(refused, "")
                expected = theirs(AutoConfig.from_pretrained(folder))
                scaling = expected.pop("rope_scaling", {})
                self.assertEqual({key: ours[key] for key in expected}, expected)
                self.assertEqual({key: ours["rope_scaling"][key] for key in scaling}, scaling)
                compared += 1
        self.assertEqual(compared, len(self.cases))

    def test_every_key_of_the_classes_is_known(self):
        known = {*FACTS, *REFUSED, *WINDOW, *IDLE, "rope_parameters"}
        for name, kind in CLASSES.items():
            self.assertEqual(set(kind().to_dict()) - known, set(), name)

    def test_what_a_file_leaves_out(self):
        for name in CLASSES:
            self.add(name)
        self.check()

    def test_each_key_by_itself(self):
        for name, kind in CLASSES.items():
            keys = set(kind().to_dict()) | {"head_dim"}
            if name in ("mixtral", "qwen3_moe"):
                keys |= {"num_experts", "num_local_experts"}  # two names of one key
            for key, value in FACTS.items():
                skipped = {"gpt2": ["head_dim"], "gpt_neox": ["head_dim"], "gpt_oss": ["num_experts"],
                           "gemma3_text": ["attn_logit_softcapping"],  # refused, like deepseek_v2's
                           "deepseek_v2": ["head_dim", "mlp_bias", "norm_topk_prob", "n_group", "topk_group"],
                           "deepseek_v3": ["head_dim"]}
                if key in keys and key not in skipped.get(name, ()):
                    default = getattr(kind(), key, None)
                    value = not default if isinstance(default, bool) else value
                    self.assertNotEqual(default, value)
                    self.add(name, **{key: value})
        for name in ("mixtral", "qwen3_moe"):
            self.add(name, num_experts=12, num_local_experts=14)
        self.check()

    def test_keys_of_another_architecture_change_nothing(self):
        self.add("mixtral", attention_bias=True, mlp_bias=True, norm_topk_prob=False, decoder_sparse_step=2)
        self.add("qwen3", mlp_bias=True, num_experts=12)
        self.add("llama", num_experts=12, moe_intermediate_size=96)
        self.check()

    def test_windows(self):
        for name, cases in WINDOWS.items():
            for changes in cases:
                self.add(name, **changes)
        self.check()

    def test_null(self):
        for name, kind in CLASSES.items():
            for key in ("num_key_value_heads", "head_dim", "rope_parameters", "mlp_only_layers"):
                if (name, key) == ("gpt_oss", "rope_parameters"):
                    continue
                try:
                    kind.from_dict({"model_type": name, key: None})
                except Exception:  # its class refuses it, so transformers reads no such file
                    continue
                self.add(name, **{key: None})
        self.assertGreaterEqual(len(self.cases), 8)
        self.check()

    def test_null_heads_where_older_versions_take_them(self):
        for name in ("mixtral", "qwen3_moe"):
            self.add(name, num_key_value_heads=None)
        for _, config, ours, refused in self.read():
            self.assertEqual(refused, "")
            self.assertEqual(ours["num_key_value_heads"], config["num_attention_heads"])

    def test_rotary_embeddings(self):
        for name in ("llama", "mixtral", "qwen3", "qwen3_moe", "qwen2", "mistral", "gemma2", "olmo2", "smollm3", "granite"):
            for rope in ROPES:
                self.add(name, **rope)
        self.check()

    def test_rotary_embeddings_of_their_own(self):
        yarn = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 20.0, "attention_factor": 1.5}
        self.add("qwen3", rope_scaling=yarn, max_position_embeddings=4096)
        self.add("qwen3", rope_parameters={"rope_type": "dynamic", "factor": 4.0})
        long = {"short_factor": [1.0, 1.1], "long_factor": [2.0, 2.2]}
        for kind in ("longrope", "su"):
            scaling = {"type": kind, "original_max_position_embeddings": 4096, **long}
            self.add("phi3", rope_scaling=scaling, partial_rotary_factor=0.5)
        self.add("phi3", rope_theta=20000.0, original_max_position_embeddings=1024, max_position_embeddings=8192,
                 rope_parameters={"rope_type": "longrope", "partial_rotary_factor": 0.5, **long})
        self.add("phi3", partial_rotary_factor=0.5)
        self.add("gpt_neox", rotary_pct=0.5, rotary_emb_base=20000)
        self.add("gpt_neox", rope_parameters={"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.75})
        self.add("gpt_neox", rope_scaling={"type": "linear", "factor": 2.0}, rotary_pct=1.0)
        self.add("gemma3_text", rope_theta=5e5, rope_local_base_freq=2e4)
        self.add("gemma3_text", rope_scaling={"rope_type": "linear", "factor": 8.0})
        self.add("gemma3_text", rope_parameters={"full_attention": LINEAR, "sliding_attention": {"rope_type": "default", "rope_theta": 5e4}})
        self.check()

    def test_what_is_refused(self):
        for name in CLASSES:
            for key, value in {**REFUSED, **(WINDOW if name == "mixtral" else {})}.items():
                own = {"mixtral": ("router_jitter_noise",), "qwen2_moe": ("qkv_bias",), "gpt_oss": ("swiglu_alpha",), "phi3": ("resid_pdrop", "embd_pdrop"),
                       "gemma2": ("hidden_activation", "use_bidirectional_attention"), "gpt_neox": ("hidden_dropout",),
                       "gemma3_text": ("hidden_activation", "use_bidirectional_attention", "attn_logit_softcapping"),
                       "deepseek_v2": ("topk_method",), "deepseek_v3": ("rope_interleave",),
                       "starcoder2": ("residual_dropout", "embedding_dropout", "use_bias"),
                       "gpt2": ("activation_function", "scale_attn_weights", "scale_attn_by_inverse_layer_idx",
                                "add_cross_attention")}
                common = {"hidden_act", "attention_dropout", "use_sliding_window", "partial_rotary_factor",
                          "quantization_config"}
                common -= {"gemma2": {"hidden_act"}, "gemma3_text": {"hidden_act"},
                           "phi3": {"partial_rotary_factor"}, "gpt_neox": {"partial_rotary_factor"},
                           "gpt2": {"hidden_act", "partial_rotary_factor"}}.get(name, set())
                if name in WINDOWED:
                    common.discard("use_sliding_window")
                if key in common or key in own.get(name, ()) or key in WINDOW:
                    self.add(name, **{key: value})
        for _, config, _, refused in self.read():
            key = list(config)[-1]
            self.assertIn(key, refused, config)

    def test_a_window_that_is_off_changes_nothing(self):
        for name in ("qwen3", "qwen3_moe"):
            self.add(name, **WINDOW)
        self.check()


if __name__ == "__main__":
    unittest.main()
