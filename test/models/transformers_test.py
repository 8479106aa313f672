"""Our models, loader and AdamW against Hugging Face's transformers and torch.optim, in float32 on the CPU.

    transformers_test.py MODEL_ORACLE    (the executable of oracle_main.cpp)
"""

import os
import subprocess
import sys
import tempfile
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()
ORACLE = sys.argv.pop(1)
STEPS, MICROBATCHES, BATCH, SEQ = 5, 2, 2, 37
LR, WEIGHT_DECAY = 1e-2, 0.1

# Sizes that share no factors, so that one taken for another does not go unseen.
SIZES = {
    "hidden_size": 72,
    "intermediate_size": 104,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 20,  # 6 * 20 != 72
    "vocab_size": 131,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.1,
    "tie_word_embeddings": False,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def build(kind, **changes):
    torch.manual_seed(2)
    model_class, config_class = {
        "llama": (LlamaForCausalLM, LlamaConfig),
        "qwen3": (Qwen3ForCausalLM, Qwen3Config),
    }[kind]
    config = config_class(**{**SIZES, **changes}, attn_implementation="eager", bos_token_id=1, eos_token_id=2)
    model = model_class(config).float()
    with torch.no_grad():  # norms and biases start as ones and zeros, which would hide mistakes
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def random_data(vocab):
    generator = torch.Generator().manual_seed(7)
    shape = (1, MICROBATCHES, BATCH, SEQ)
    tokens = torch.randint(vocab, shape, generator=generator)
    labels = torch.randint(vocab, shape, generator=generator)
    labels[torch.rand(shape, generator=generator) < 0.15] = -100
    # Uneven numbers of valid tokens: a mean of the microbatches' means would be another loss.
    labels[:, 0, :, : SEQ // 2] = -100
    # The same batch in every step, so that its loss must fall.
    return tokens.repeat(STEPS, 1, 1, 1), labels.repeat(STEPS, 1, 1, 1)


def train(model, tokens, labels):
    """What model_oracle computes, by transformers and torch.optim."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": plain, "weight_decay": 0.0}],
        lr=LR, betas=(0.9, 0.95), eps=1e-8)
    result = {"loss": [], "norm": []}
    for step in range(STEPS):
        logits = model(input_ids=tokens[step].reshape(-1, SEQ)).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[step].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            result["logits"] = logits[:BATCH].detach()
            for name, parameter in model.named_parameters():
                result["gradient." + name] = parameter.grad.clone()
        result["loss"].append(loss.item())
        result["norm"].append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
    return {key: torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value
            for key, value in result.items()}


def run_oracle(model, tokens, labels, stages, **save_options):
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, **save_options)
        source, target = os.path.join(folder, "input.st"), os.path.join(folder, "output.st")
        save_file({"tokens": tokens, "labels": labels, "lr": torch.tensor([LR], dtype=torch.float64),
                   "weight_decay": torch.tensor([WEIGHT_DECAY], dtype=torch.float64)}, source)
        run = subprocess.run([ORACLE, folder, source, target, str(stages)], capture_output=True, text=True)
        if run.returncode != 0:
            raise AssertionError(run.stderr)
        return load_file(target)


class TransformersTest(unittest.TestCase):
    def check(self, kind, stages=1, save_options=None, **changes):
        torch.set_num_threads(1)
        model = build(kind, **changes)
        tokens, labels = random_data(model.config.vocab_size)
        actual = run_oracle(model, tokens, labels, stages, **(save_options or {}))
        expected = train(model, tokens, labels)
        self.assertEqual(set(actual), set(expected))
        self.assertGreater(expected["norm"].max().item(), 1.0, "clipping must act")
        self.assertLess(expected["loss"][-1].item(), expected["loss"][0].item() - 0.1, "the steps must matter")
        self.near(actual["loss"][0], expected["loss"][0], 1e-5, "loss")
        self.near(actual["logits"], expected["logits"], 1e-5, "logits")
        for name in expected:
            if name.startswith("gradient."):
                self.near(actual[name], expected[name], 1e-4, name)
        for step in range(STEPS):
            self.near(actual["loss"][step], expected["loss"][step], 1e-4, f"loss of step {step}")
            self.near(actual["norm"][step], expected["norm"][step], 1e-3, f"norm of step {step}")

    def near(self, actual, expected, tolerance, what):
        self.assertEqual(actual.shape, expected.shape, what)
        error = ((actual.double() - expected.double()).norm() / expected.double().norm()).item()
        self.assertLess(error, tolerance, what)

    def test_llama(self):
        self.check("llama")

    def test_llama_tied_over_two_stages(self):
        self.check("llama", stages=2, tie_word_embeddings=True)

    def test_llama_llama3_rope(self):
        self.check("llama", rope_parameters=LLAMA3_ROPE)

    def test_llama_linear_rope(self):
        self.check("llama", rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0})

    def test_llama_biases_and_one_kv_head(self):
        self.check("llama", stages=3, attention_bias=True, mlp_bias=True, num_key_value_heads=1)

    def test_llama_sharded_files(self):
        self.check("llama", stages=2, save_options={"max_shard_size": "100KB"})

    def test_qwen3(self):
        self.check("qwen3", stages=2)

    def test_qwen3_tied_with_biases_and_one_kv_head(self):
        self.check("qwen3", tie_word_embeddings=True, attention_bias=True, num_key_value_heads=1)

    def test_qwen3_llama3_rope_and_as_many_kv_heads(self):
        self.check("qwen3", stages=3, rope_parameters=LLAMA3_ROPE, num_key_value_heads=6)


if __name__ == "__main__":
    unittest.main()
