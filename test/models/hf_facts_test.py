"""What a config.json says, and what it leaves out, is what transformers makes of the same file.

    hf_facts_test.py MODEL_ORACLE    (the executable of oracle_main.cpp)

Defaults are read from transformers' own classes, so that a change there is seen here. Every key that a class knows is
in one of the tables below: compared, of no use to a model that trains here, or refused where it is not off.
"""

import json
import os
import subprocess
import sys
import tempfile
import tomllib
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"

from transformers import AutoConfig, LlamaConfig, MixtralConfig, Qwen3Config, Qwen3MoeConfig
from transformers.utils.logging import set_verbosity_error

set_verbosity_error()
ORACLE = sys.argv.pop(1)
CLASSES = {"llama": LlamaConfig, "mixtral": MixtralConfig, "qwen3": Qwen3Config, "qwen3_moe": Qwen3MoeConfig}
# What a config.json must say itself. No size is any class's default, nor another's here.
SIZES = {"hidden_size": 192, "intermediate_size": 416, "num_hidden_layers": 6, "num_attention_heads": 24,
         "vocab_size": 1000}
# Keys that are compared, each with a value that is no class's default.
FACTS = {
    "hidden_size": 384, "intermediate_size": 320, "num_hidden_layers": 5, "num_attention_heads": 12,
    "vocab_size": 999, "num_key_value_heads": 6, "head_dim": 10, "max_position_embeddings": 777,
    "initializer_range": 0.03, "rms_norm_eps": 1e-4, "tie_word_embeddings": True, "attention_bias": True,
    "mlp_bias": True, "num_experts_per_tok": 3, "num_experts": 12, "num_local_experts": 14,
    "moe_intermediate_size": 96, "norm_topk_prob": True, "decoder_sparse_step": 2, "mlp_only_layers": [1, 3],
}
# Keys that change what transformers computes in a way that pptrain has not, with such a value.
REFUSED = {"hidden_act": "gelu", "attention_dropout": 0.1, "use_sliding_window": True, "router_jitter_noise": 0.1,
           "partial_rotary_factor": 0.5, "quantization_config": {"bits": 4}}
# Refused by itself in mixtral; in the others it needs use_sliding_window.
WINDOW = {"sliding_window": 64}
# Of text, of the library, or of its own losses: what a model computes from tokens is the same.
# layer_types only says which layers would have the sliding window.
IDLE = {
    "transformers_version", "architectures", "output_hidden_states", "return_dict", "dtype", "chunk_size_feed_forward",
    "is_encoder_decoder", "id2label", "label2id", "problem_type", "use_cache", "pad_token_id", "bos_token_id",
    "eos_token_id", "pretraining_tp", "_name_or_path", "model_type", "output_attentions", "max_window_layers",
    "layer_types", "output_router_logits", "router_aux_loss_coef",
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


def theirs(config):
    """[model] of transformers' configuration, as our keys have it."""
    heads = config.num_attention_heads
    facts = {key: getattr(config, key) for key in (*SIZES, "max_position_embeddings", "rms_norm_eps",
                                                   "initializer_range", "tie_word_embeddings")}
    facts["arch"] = config.model_type
    facts["num_key_value_heads"] = config.num_key_value_heads
    facts["head_dim"] = getattr(config, "head_dim", None) or config.hidden_size // heads
    # transformers' Mixtral has no biases, and Qwen3's MLPs have none, whatever is written.
    facts["attention_bias"] = config.model_type != "mixtral" and config.attention_bias
    facts["mlp_bias"] = config.model_type == "llama" and config.mlp_bias
    if config.model_type in ("mixtral", "qwen3_moe"):
        facts["num_experts"] = config.num_experts
        facts["num_experts_per_tok"] = config.num_experts_per_tok
    if config.model_type == "qwen3_moe":
        for key in ("moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"):
            facts[key] = getattr(config, key)
    config.standardize_rope_params()  # as a model does with the configuration that it is given
    rope = config.rope_parameters
    facts["rope_theta"] = rope["rope_theta"]
    facts["rope_scaling"] = {"rope_type": rope["rope_type"]}
    of_type = {"default": (), "linear": ("factor",),
               "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")}
    for key in of_type[rope["rope_type"]]:
        facts["rope_scaling"][key] = rope[key]
    return facts


class HfFactsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.cases = []  # directory, config.json

    def add(self, name, **changes):
        config = {"model_type": name, **SIZES, **changes}
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
                scaling = expected.pop("rope_scaling")
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
                keys |= {"num_experts", "num_local_experts"}  # two names of one
            for key, value in FACTS.items():
                if key in keys:
                    self.assertNotEqual(getattr(kind(), key, None), value)
                    self.add(name, **{key: value})
        for name in ("mixtral", "qwen3_moe"):
            self.add(name, num_experts=12, num_local_experts=14)
        self.check()

    def test_keys_of_another_architecture_change_nothing(self):
        self.add("mixtral", attention_bias=True, mlp_bias=True, norm_topk_prob=False, decoder_sparse_step=2)
        self.add("qwen3", mlp_bias=True, num_experts=12)
        self.add("llama", num_experts=12, moe_intermediate_size=96)
        self.check()

    def test_null(self):
        for name, kind in CLASSES.items():
            for key in ("num_key_value_heads", "head_dim", "rope_parameters", "mlp_only_layers"):
                try:
                    kind.from_dict({"model_type": name, key: None})
                except Exception:  # its class refuses it: no file that transformers reads
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
        for name in CLASSES:
            for rope in ROPES:
                self.add(name, **rope)
        self.check()

    def test_what_is_refused(self):
        for name in CLASSES:
            for key, value in {**REFUSED, **(WINDOW if name == "mixtral" else {})}.items():
                if key != "router_jitter_noise" or name == "mixtral":
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
