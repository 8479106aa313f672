"""Our models, loader and AdamW in float32 against Hugging Face's transformers and torch.optim in float64, on the CPU.

    transformers_test.py MODEL_ORACLE    (the executable of oracle_main.cpp)

Each step begins at given weights, from a path of gradient descent in float64. Two correct implementations would
otherwise diverge: AdamW turns a gradient that is zero up to rounding into a whole step, and a few steps later a token's
third and fourth expert change places. At given weights the routing is the same on every processor. So losses,
gradients, the norm and the step itself (with moments over all steps so far) are compared closely.
"""

import copy
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.utils.logging import disable_progress_bar

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from bounds import assert_within, refuse_near_ties, seed  # noqa: E402
from transformers_models import FAMILIES, ClosestTie, balance_loss, build_family, shake_norms  # noqa: E402

disable_progress_bar()
ORACLE = sys.argv.pop(1)
STEPS, MICROBATCHES, BATCH, SEQ = 5, 2, 2, 37
LR, WEIGHT_DECAY, BETAS, EPSILON = 1e-2, 0.1, (0.9, 0.95), 1e-8
# Errors of gradients in float32. They sum some thousand terms; in some tensors an eighth of that is left after cancellation.
# A tensor's error is relative to its norm, an element's to the largest element. A vector's gradient may cancel even more.
GRADIENT, SLACK, OF_VECTOR = 512 * 2**-24, 256 * 2**-24, 4
OF_PYTORCH = 4  # a gradient that cancels more: this many times the error that it has in PyTorch's own float32
PATH_RATE = 0.5  # of gradient descent with gradients of norm at most 1

# Sizes without common factors, so that a size used in another's place is found.
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
EXPERTS = {"num_experts_per_tok": 3, "router_aux_loss_coef": 0.0}
QWEN3_MOE = {**EXPERTS, "num_experts": 7, "moe_intermediate_size": 44}
MIXTRAL = {**EXPERTS, "num_local_experts": 5, "rms_norm_eps": 1e-5}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def build(kind, **changes):
    torch.manual_seed(seed(2))
    if kind in FAMILIES:
        return build_family(kind, **{"max_position_embeddings": 40, **changes}).double()
    model_class, config_class = {
        "llama": (LlamaForCausalLM, LlamaConfig),
        "qwen3": (Qwen3ForCausalLM, Qwen3Config),
        "qwen3_moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig),
        "mixtral": (MixtralForCausalLM, MixtralConfig),
    }[kind]
    config = config_class(**{**SIZES, **changes}, attn_implementation="eager", bos_token_id=1, eos_token_id=2)
    config._experts_implementation = "eager"  # the others do not support float64
    model = model_class(config).double()
    shake_norms(model)
    return model


def random_data(vocab):
    generator = torch.Generator().manual_seed(seed(7))
    shape = (1, MICROBATCHES, BATCH, SEQ)
    tokens = torch.randint(vocab, shape, generator=generator)
    labels = torch.randint(vocab, shape, generator=generator)
    labels[torch.rand(shape, generator=generator) < 0.15] = -100
    # Uneven numbers of valid tokens: a mean of the microbatches' means would be another loss.
    labels[:, 0, :, : SEQ // 2] = -100
    # The same batch in every step, so that its loss must fall.
    return tokens.repeat(STEPS, 1, 1, 1), labels.repeat(STEPS, 1, 1, 1)


def random_filling(labels):
    """Rows that end in padding: token 0 again and again, without labels."""
    filling = torch.zeros_like(labels, dtype=torch.bool)
    for row, own in enumerate((SEQ, SEQ // 3, 2 * SEQ // 3, SEQ // 2)):
        filling.flatten(1, 2)[:, row, own:] = True
    return filling


def parts_of(config, name, tensor):
    """A parameter's tensors in the usual Hugging Face directory: one for each expert."""
    if config.model_type in ("gpt_oss", "gpt_neox"):
        yield {("gpt_neox", "lm_head.weight"): "embed_out.weight"}.get((config.model_type, name), name), tensor
        return
    block, gate, up, down = ("mlp", "gate_proj", "up_proj", "down_proj")
    if config.model_type == "mixtral":
        block, gate, up, down = ("block_sparse_moe", "w1", "w3", "w2")
    prefix = name.rsplit("mlp.", 1)[0] + block
    if name.endswith("mlp.experts.gate_up_proj"):
        for expert, both in enumerate(tensor):
            for part, half in zip((gate, up), both.chunk(2)):
                yield f"{prefix}.experts.{expert}.{part}.weight", half.contiguous()
    elif name.endswith("mlp.experts.down_proj"):
        for expert, one in enumerate(tensor):
            yield f"{prefix}.experts.{expert}.{down}.weight", one
    elif name.endswith("mlp.gate.weight"):
        yield f"{prefix}.gate.weight", tensor
    else:
        yield name, tensor


def gradients(model, tokens, labels, filling, balance, z):
    """Writes the gradients of one step's mean loss into the parameters; returns the loss and the first microbatch's logits."""
    valid = labels.ne(-100)
    model.zero_grad()
    loss, first = 0.0, None
    for i in range(MICROBATCHES):  # the router's losses are means over a microbatch, weighted by its labels
        output = model(input_ids=tokens[i], **({"output_router_logits": True} if balance or z else {}))
        nats = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), labels[i].flatten(),
                                                 ignore_index=-100, reduction="sum") / valid.sum()
        extra = 0.0
        if balance or z:
            weight = valid[i].sum() / valid.sum()
            own = filling[i].logical_not()
            extra = weight * balance_loss(model, output.router_logits, balance, own.double())
            for layer in output.router_logits:
                extra = extra + weight * z * layer[own.flatten()].logsumexp(-1).square().mean()
        (nats + extra).backward()
        loss += nats.item()
        first = output.logits.detach() if first is None else first
    return loss, first


def go_to(model, place):
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), place):
            parameter.copy_(value)


def train(model, tokens, labels, filling, balance, z):
    """The results of model_oracle, by transformers and torch.optim, and the path: the parameters before each step, exact in
    float32. `slack.STEP.NAME` is a weight's possible error if each gradient has an error of SLACK times the tensor's
    largest one: AdamW divides by the root of the mean square."""
    decayed = [p for name, p in model.named_parameters() if p.dim() > 1 and not name.endswith("bias")]
    plain = [p for name, p in model.named_parameters() if p.dim() <= 1 or name.endswith("bias")]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": plain, "weight_decay": 0.0}],
        lr=LR, betas=BETAS, eps=EPSILON)
    largest = [0.0 for _ in model.parameters()]
    result = {"loss": [], "norm": []}
    path = [[p.detach().float().double() for p in model.parameters()]]
    for step in range(STEPS):
        place = path[step]
        go_to(model, place)
        loss, logits = gradients(model, tokens[step], labels[step], filling[step], balance, z)
        result["loss"].append(loss)
        if step == 0:
            result["logits"] = logits
            for name, parameter in model.named_parameters():
                for ours, gradient in parts_of(model.config, name, parameter.grad):
                    result["gradient." + ours] = gradient.clone()
        result["norm"].append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        path.append([(w - PATH_RATE * p.grad).float().double() for w, p in zip(place, model.parameters())])
        optimizer.step()
        for i, (name, parameter) in enumerate(model.named_parameters()):
            largest[i] = max(largest[i], parameter.grad.abs().max().item())
            moment = optimizer.state[parameter]["exp_avg_sq"] / (1 - BETAS[1] ** (step + 1))
            off = SLACK * (OF_VECTOR if parameter.dim() == 1 else 1) * largest[i]
            slack = LR * off / (moment.sqrt() + EPSILON) + 2**-23 * parameter.detach().abs()
            for ours, value in parts_of(model.config, name, parameter.detach()):
                result[f"weight.{step}.{ours}"] = value.clone()
            for ours, value in parts_of(model.config, name, slack):
                result[f"slack.{step}.{ours}"] = value
    result = {key: torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value
              for key, value in result.items()}
    return result, path[:STEPS]


def run_oracle(model, path, tokens, labels, filling, stages, balance, z, **save_options):
    with tempfile.TemporaryDirectory() as folder:
        model = model.float()
        folders = [os.path.join(folder, f"step_{step}") for step in range(STEPS)]
        for place, step in zip(path, folders):
            go_to(model, place)
            model.save_pretrained(step, **save_options)
        source, target = os.path.join(folder, "input.st"), os.path.join(folder, "output.st")
        save_file({"tokens": tokens, "labels": labels, "filling": filling, "losses": torch.tensor([balance, z], dtype=torch.float64), "lr": torch.tensor([LR], dtype=torch.float64),
                   "weight_decay": torch.tensor([WEIGHT_DECAY], dtype=torch.float64)}, source)
        run = subprocess.run([ORACLE, source, target, str(stages), *folders], capture_output=True, text=True)
        if run.returncode != 0:
            raise AssertionError(run.stderr)
        return load_file(target)


class TransformersTest(unittest.TestCase):
    def check(self, kind, stages=1, save_options=None, balance=0.0, z=0.0, padded=False, **changes):
        torch.set_num_threads(1)
        model = build(kind, **changes)
        tokens, labels = random_data(model.config.vocab_size)
        filling = random_filling(labels) if padded else torch.zeros_like(labels, dtype=torch.bool)
        tokens[filling], labels[filling] = 0, -100
        narrow = copy.deepcopy(model).float()
        gradients(narrow, tokens[0], labels[0], filling[0], balance, z)
        tie = ClosestTie(model)
        expected, path = train(model, tokens, labels, filling, balance, z)
        errors = {"gradient." + ours: self.error(gradient, expected["gradient." + ours])
                  for name, parameter in narrow.named_parameters()
                  for ours, gradient in parts_of(narrow.config, name, parameter.grad)}
        self.assertGreater(expected["norm"].max().item(), 1.0, "clipping must act")
        self.assertLess(expected["loss"][-1].item(), expected["loss"][0].item() - 0.1, "the steps must matter")
        refuse_near_ties(self, tie.distance, 1e-5)
        self.assertGreater(tie.of_clamp, 1e-4, "a value so near its clamp may have the other gradient in float32")
        slack = {name.replace("slack", "weight"): expected.pop(name) for name in list(expected) if name.startswith("slack.")}
        actual = run_oracle(model, path, tokens, labels, filling, stages, balance, z, **(save_options or {}))
        choice = ".e_score_correction_bias"  # of DeepSeek-V3's routers, which has no gradient
        self.assertEqual({name for name in actual if not name.endswith(choice)}, set(expected))
        self.near(actual["logits"], expected["logits"], 1e-5, "logits")
        for name in expected:
            if name.startswith("gradient."):
                usual = GRADIENT * (OF_VECTOR if expected[name].dim() == 1 else 1)
                self.near(actual[name], expected[name], max(usual, OF_PYTORCH * errors[name]), name)
        for step in range(STEPS):
            self.near(actual["loss"][step], expected["loss"][step], 1e-6, f"loss of step {step}")
            self.near(actual["norm"][step], expected["norm"][step], 1e-5, f"norm of step {step}")
        for name, allowed in slack.items():
            error = (actual[name].double() - expected[name]).abs()
            assert_within(self, (error / allowed).max(), 1, f"{name}: times what is allowed")
        close = torch.cat([(allowed < 0.01 * LR).flatten() for allowed in slack.values()])
        self.assertGreater(close.double().mean().item(), 0.5, "the steps of most weights are known to a hundredth")

    def near(self, actual, expected, tolerance, what):
        self.assertEqual(actual.shape, expected.shape, what)
        assert_within(self, self.error(actual, expected), tolerance, what, callers=2)

    def error(self, actual, expected):
        size = expected.double().norm().item() or 1.0  # the expected gradient of an expert that no token chose is zero
        return (actual.double() - expected.double()).norm().item() / size

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

    def test_qwen3_moe(self):
        self.check("qwen3_moe", **QWEN3_MOE)

    def test_qwen3_moe_normalised_among_dense_layers(self):
        self.check("qwen3_moe", stages=2, norm_topk_prob=True, mlp_only_layers=[1], **QWEN3_MOE)

    def test_qwen3_moe_every_second_layer_tied(self):
        self.check("qwen3_moe", stages=3, decoder_sparse_step=2, tie_word_embeddings=True, **QWEN3_MOE)

    def test_qwen3_moe_fused_weights(self):
        self.check("qwen3_moe", save_options={"save_original_format": False}, **QWEN3_MOE)

    def test_qwen3_moe_router_losses(self):
        self.check("qwen3_moe", stages=2, balance=0.3, z=0.02, norm_topk_prob=True, **QWEN3_MOE)

    def test_qwen3_moe_router_losses_of_padded_rows(self):
        self.check("qwen3_moe", stages=2, balance=0.3, z=0.02, norm_topk_prob=True, padded=True, **QWEN3_MOE)

    def test_mixtral(self):
        self.check("mixtral", stages=2, **MIXTRAL)

    def test_mixtral_fused_weights_and_router_losses(self):
        self.check("mixtral", balance=0.3, z=0.02, save_options={"save_original_format": False}, **MIXTRAL)

    def test_families(self):
        for stages, name in enumerate(FAMILIES):
            with self.subTest(family=name):
                self.check(name, stages=1 + stages % 3)

    def test_families_otherwise(self):
        cases = [("qwen2", {"use_sliding_window": False, "tie_word_embeddings": True}),
                 ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True}),
                 ("gemma3_text", {"final_logit_softcapping": 5.0, "attention_bias": True}),
                 ("phi3", {"original_max_position_embeddings": 64, "tie_word_embeddings": True}),
                 ("gpt2", {"tie_word_embeddings": False}),
                 ("gpt_neox", {"use_parallel_residual": False, "attention_bias": False})]
        for stages, (name, changes) in enumerate(cases):
            with self.subTest(family=name):
                self.check(name, stages=1 + stages % 3, **changes)

    def test_yarn_and_dynamic_rope(self):
        yarn = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
        dynamic = {"rope_type": "dynamic", "rope_theta": 5000.0, "factor": 3.0}
        self.check("qwen3", rope_parameters=yarn)
        self.check("llama", rope_parameters=dynamic, max_position_embeddings=24)


if __name__ == "__main__":
    unittest.main()
