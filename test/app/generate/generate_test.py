"""pptrain generate and eval against Hugging Face's transformers, in float32 on the CPU.

    generate_test.py PPTRAIN SAMPLING_ORACLE [unittest arguments]
"""

import copy
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.generation.logits_process import (LogitsProcessorList, MinPLogitsWarper,
                                                    RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper,
                                                    TopKLogitsWarper, TopPLogitsWarper)
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()
torch.set_num_threads(1)  # quicker for models as small as these
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from bounds import assert_within, exact, seed  # noqa: E402
from pptrain import run, sets  # noqa: E402
from transformers_models import FAMILIES, build_family, shake_norms  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
ORACLE = pathlib.Path(sys.argv.pop(1)).resolve()
TOKENS = 100  # longer than all windows and than all lengths at which frequencies change
PROMPTS = [[3, 17, 5, 99, 8, 1, 44], [120], [7] * 30 + [2, 5]]

# Sizes without common factors, so that a size used in another's place is found.
SIZES = {
    "hidden_size": 72,
    "intermediate_size": 104,
    "num_hidden_layers": 4,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 20,  # 9 * 20 != 72
    "vocab_size": 131,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts_per_tok": 3}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig, {"rope_parameters": LLAMA3_ROPE, "attention_bias": True}),
    "llama_tied": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"tie_word_embeddings": True}),
    "qwen3_moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig,
                  {**EXPERTS, "num_experts": 7, "moe_intermediate_size": 44, "norm_topk_prob": True}),
    "mixtral": (MixtralForCausalLM, MixtralConfig, {**EXPERTS, "num_local_experts": 5}),
}
# RoPE whose frequencies depend on the text's length: the family, the model's arguments, and settings of the job.
# Texts of up to 32 (or 16) tokens have other frequencies than longer ones.
BY_LENGTH = {
    "longrope": ("phi3", {"hidden_size": 32, "num_attention_heads": 2, "original_max_position_embeddings": 32, "sliding_window": None,
                          "rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 1.0,
                                              "short_factor": [1 + 0.05 * i for i in range(8)],
                                              "long_factor": [1 + 2.0 * i for i in range(8)]}}, ["train.seq_len=32"]),
    "dynamic": ("llama", {"max_position_embeddings": 16, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 3.0}},
                ["train.seq_len=64"]),
}
LAYOUTS = {
    "one rank": [],
    "pp 2": ["distributed.pp=2"],
    "pp 2, V": ["distributed.pp=2", "distributed.pp_schedule=zbv"],
}

JOB = """
[run]
dir = "{folder}/run"
[model]
arch = "{arch}"
[train]
steps = 1
seq_len = 16
grad_accum_steps = 4
dtype = "fp32"
[data]
path = "{folder}/tokens.bin"
format = "bin"
val_fraction = 0.5
[metrics]
peak_tflops = 1
"""


def build(name, **more):
    torch.manual_seed(seed(2))
    if name in FAMILIES:
        return build_family(name, layers=4, initializer_range=0.15, **more).eval()
    model_class, config_class, changes = MODELS[name]
    config = config_class(**{**SIZES, **changes, **more}, attn_implementation="eager", bos_token_id=1, eos_token_id=2)
    model = model_class(config).float().eval()
    shake_norms(model)
    return model


def greedy(model, prompt, tokens=TOKENS):
    with torch.no_grad():
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens,
                             eos_token_id=None, pad_token_id=0)
    return out[0, len(prompt):].tolist()


def logits_of(model, ids):
    """The logits of a fresh copy of the model: with dynamic RoPE transformers remembers the longest text."""
    with torch.no_grad():
        return copy.deepcopy(model)(torch.tensor([ids])).logits[0]


class Generate(unittest.TestCase):
    def pptrain(self, *arguments, code=0):
        return run([PPTRAIN, *arguments], None, code=code)

    def prepare(self, folder, name, **more):
        model = build(name, **more)
        model.save_pretrained(folder / "hf")
        tokens = torch.randint(0, SIZES["vocab_size"], (600,), generator=torch.Generator().manual_seed(seed(3)))
        (folder / "tokens.bin").write_bytes(tokens.to(torch.uint16).numpy().tobytes())
        (folder / "job.toml").write_text(JOB.format(folder=folder, arch=name.removesuffix("_tied")))
        return model, tokens

    def settings(self, folder, keys):
        return ["--config", folder / "job.toml", "--checkpoint", folder / "hf", *sets(*keys)]

    def test_greedy_equals_transformers_token_for_token(self):
        for name in MODELS:
            with tempfile.TemporaryDirectory() as path:
                folder = pathlib.Path(path)
                model, _ = self.prepare(folder, name)
                expected = [greedy(model, prompt) for prompt in PROMPTS]
                for layout, keys in LAYOUTS.items():
                    with self.subTest(model=name, layout=layout):
                        prompts = [x for p in PROMPTS for x in ("--prompt-ids", ",".join(map(str, p)))]
                        done = self.pptrain("generate", *self.settings(folder, keys), *prompts, "--greedy", "--json",
                                            "--max-tokens", TOKENS)
                        lines = [json.loads(line) for line in done.stdout.splitlines()]
                        self.assertEqual([line["prompt_ids"] for line in lines], PROMPTS)
                        self.assertEqual([line["ids"] for line in lines], expected)
                        self.assertTrue(all(line["finish"] == "length" for line in lines))

    def test_families_generate_what_transformers_does(self):
        for name in FAMILIES:
            with tempfile.TemporaryDirectory() as path, self.subTest(model=name):
                folder = pathlib.Path(path)
                model, _ = self.prepare(folder, name)
                done = self.pptrain("generate", *self.settings(folder, [f'model.hf_dir="{folder}/hf"']),
                                    "--prompt-ids", ",".join(map(str, PROMPTS[0])), "--greedy", "--json",
                                    "--max-tokens", TOKENS)
                self.assertEqual(json.loads(done.stdout)["ids"], greedy(model, PROMPTS[0]))

    def test_eval_equals_transformers(self):
        for name in ("llama", "qwen3_moe"):
            with tempfile.TemporaryDirectory() as path:
                folder = pathlib.Path(path)
                model, tokens = self.prepare(folder, name)
                held = tokens[300:].tolist()
                nats, count = 0.0, 0
                for first in range(0, len(held) - 1, 16):  # samples of 16 tokens, the last one shorter
                    row = torch.tensor([held[first:first + 17]])
                    with torch.no_grad():
                        logits = model(row[:, :-1]).logits[0]
                    nats += torch.nn.functional.cross_entropy(logits, row[0, 1:], reduction="sum").item()
                    count += row.shape[1] - 1
                for layout, keys in LAYOUTS.items():
                    with self.subTest(model=name, layout=layout):
                        done = self.pptrain("eval", *self.settings(folder, keys), "--batches", 0, "--json")
                        result = json.loads(done.stdout)
                        self.assertEqual(result["tokens"], count)
                        assert_within(self, abs(result["loss"] - nats / count), 1e-5)
                        self.assertAlmostEqual(result["perplexity"], math.exp(result["loss"]), 6)
                        self.assertNotIn("bits_per_byte", result)  # the tokens' bytes are not known
                        self.assertEqual(result["sources"][0]["loss"], result["loss"])
                self.assertFalse((folder / "run").exists())  # nothing is written

    def test_losses_of_documents_equal_transformers_on_every_layout(self):
        with tempfile.TemporaryDirectory() as path:
            folder = pathlib.Path(path)
            model, tokens = self.prepare(folder, "llama", intermediate_size=108)  # three ranks divide it
            held = tokens[300:].tolist()
            rows = [held[first:first + 17] for first in range(0, len(held) - 1, 16)]
            ends = [i + 1 for i, token in enumerate(held) if token % 9 == 0 and i + 1 < len(held)]
            documents = [held[a:b] for a, b in zip([0, *ends], [*ends, len(held)])]
            (folder / "ends.jsonl").write_text("".join(json.dumps({"ids": d}) + "\n" for d in documents))
            listed = ["data.format=jsonl", "data.tokens_key=ids", f"data.path={folder}/ends.jsonl", f"data.cache={folder}/cache",
                      "data.val_fraction=0", f"data.val_path={folder}/ends.jsonl"]
            layouts = {**LAYOUTS, "dp 2": ["distributed.dp=2", "train.grad_accum_steps=2"],
                       "cp 2": ["distributed.cp=2"], "pp 2, tp 3": ["distributed.pp=2", "distributed.tp=3"]}
            packed = ["data.packing=best_fit", "data.lengths=exact", "train.seq_len=64", "distributed.cp=2"]
            cases = [(rows, [], keys) for keys in layouts.values()]
            cases += [(documents, listed, []), (documents, listed, packed)]
            for texts, source, keys in cases:
                with self.subTest(source=source, keys=keys):
                    expected = {}
                    for number, text in enumerate(texts):
                        parts = [text[i:i + 65] for i in range(0, len(text) - 1, 64)]  # at most 64 predicted tokens each
                        if len(text) < 2:
                            continue
                        self.assertEqual(1, len(parts))
                        row = torch.tensor([text])
                        with torch.no_grad():
                            logits = model(row[:, :-1]).logits[0]
                        expected[number] = (torch.nn.functional.cross_entropy(logits, row[0, 1:]).item(), len(text) - 1)
                    settings = self.settings(folder, [*source, *keys, *([] if "train.seq_len=64" in keys or not source else
                                                                        ["train.seq_len=64", "data.packing=none"])])
                    out = self.pptrain("eval", *settings, "--documents", folder / "documents.jsonl", "--json")
                    lines = [json.loads(line) for line in (folder / "documents.jsonl").read_text().splitlines()]
                    self.assertEqual([*expected], [line["document"] for line in lines])
                    for line in lines:
                        loss, targets = expected[line["document"]]
                        self.assertEqual(targets, line["targets"])
                        assert_within(self, abs(line["loss"] - loss), 2e-5)
                    total = sum(line["loss"] * line["targets"] for line in lines)
                    self.assertAlmostEqual(json.loads(out.stdout)["loss"], total / sum(line["targets"] for line in lines), 6)

    def test_logits_and_scores_equal_transformers(self):
        pairs = [([3, 17, 5], [99, 8, 1]), ([120], [7]), ([7] * 20, [2, 5] * 9), ([4, 4], []),
                 ([9], [2, 5, 7, 11] * 64)]  # the last token is behind the last position
        layouts = {**LAYOUTS, "cp 2, tp 3": ["distributed.cp=2", "distributed.tp=3"]}
        with tempfile.TemporaryDirectory() as path:
            folder = pathlib.Path(path)
            model, _ = self.prepare(folder, "llama", intermediate_size=108)
            pairs.append(([3, 17, 5, 99], greedy(model, [3, 17, 5, 99])[:6]))
            (folder / "pairs.jsonl").write_text(
                "".join(json.dumps({"prompt_ids": p, "completion_ids": c}) + "\n" for p, c in pairs))
            expected = []
            for prompt, completion in pairs:
                with torch.no_grad():
                    logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1:-1].double()
                chosen = torch.tensor(completion, dtype=torch.int64)
                total = logits.log_softmax(-1).gather(1, chosen[:, None]).sum().item()
                expected.append((total, len(completion), torch.equal(logits.argmax(-1), chosen)))
            self.assertEqual([False, True], sorted({greedy_too for *_, greedy_too in expected}))
            ids = pairs[2][0] + pairs[0][1]
            with torch.no_grad():
                reference = model(torch.tensor([ids])).logits[0].numpy()
            for layout, keys in layouts.items():
                with self.subTest(layout=layout):
                    settings = self.settings(folder, keys)
                    done = self.pptrain("generate", *settings, "--score", folder / "pairs.jsonl", "--in-flight", 3)
                    lines = [json.loads(line) for line in done.stdout.splitlines()]
                    self.assertEqual([e[1:] for e in expected], [(line["tokens"], line["greedy"]) for line in lines])
                    for line, (total, *_) in zip(lines, expected, strict=True):
                        assert_within(self, abs(line["log_probability"] - total), 1e-4)
                    self.pptrain("eval", *settings, "--ids", ",".join(map(str, ids)), "--logits", folder / "out.npy")
                    ours = numpy.load(folder / "out.npy")
                    self.assertEqual((numpy.float32, reference.shape), (ours.dtype, ours.shape))
                    assert_within(self, numpy.abs(ours - reference).max(), 1e-4)
            piped = subprocess.run([PPTRAIN, "generate", *map(str, self.settings(folder, [])), "--score", "-"],
                                   input=(folder / "pairs.jsonl").read_text(), capture_output=True, text=True, check=True)
            self.assertEqual(len(pairs), len(piped.stdout.splitlines()))
            (folder / "ids.txt").write_text("[" + ",\r\n  ".join(map(str, ids)) + "]\n")
            for given in (folder / "ids.txt", ", ".join(map(str, ids))):
                self.pptrain("eval", *settings, "--ids", given, "--logits", folder / "other.npy")
                self.assertEqual((folder / "out.npy").read_bytes(), (folder / "other.npy").read_bytes())
            (folder / "bad.jsonl").write_text('\n\n{"prompt_ids": [1], "completion_ids": [2]}\n\n{"prompt_ids": [1]}\n')
            done = self.pptrain("generate", *self.settings(folder, []), "--score", folder / "bad.jsonl", code=2)
            self.assertIn("--score: line 5 is no", done.stderr)
            done = self.pptrain("generate", *self.settings(folder, []), "--score", folder / "pairs.jsonl", "--greedy", code=2)
            self.assertIn("--greedy excludes --score", done.stderr)
            (folder / "long.jsonl").write_text(json.dumps({"prompt_ids": [9, 9], "completion_ids": [2] * 256}) + "\n")
            done = self.pptrain("generate", *self.settings(folder, []), "--score", folder / "long.jsonl", code=2)
            self.assertIn("prompt 1: it has 257 tokens, and the model takes 256", done.stderr)
            done = self.pptrain("eval", *self.settings(folder, []), "--ids", "1,9999", "--logits", folder / "x.npy", code=2)
            self.assertIn("the id 9999 is not in the model's vocabulary", done.stderr)

    def by_length(self, folder, name):
        """Builds a model of BY_LENGTH. Returns it and the function that makes its arguments."""
        family, changes, keys = BY_LENGTH[name]
        model, _ = self.prepare(folder, family, **changes)
        return model, lambda *more: self.settings(folder, [f'model.hf_dir="{folder}/hf"', *keys, *more])

    def test_rope_by_length_has_the_logits_and_scores_of_transformers(self):
        texts = [[(7 * i + 3) % 131 for i in range(length)] for length in (5, 16, 17, 20, 32, 33, 60)]
        of_logits = {"longrope": (5, 32, 33, 60), "dynamic": (5, 16, 17, 60)}  # scores use every length
        for name in BY_LENGTH:
            with tempfile.TemporaryDirectory() as path:
                folder = pathlib.Path(path)
                model, settings = self.by_length(folder, name)
                for text in (t for t in texts if len(t) in of_logits[name]):
                    with self.subTest(rope=name, tokens=len(text)):
                        self.pptrain("eval", *settings(), "--ids", ",".join(map(str, text)), "--logits", folder / "out.npy")
                        self.assertLess(numpy.abs(numpy.load(folder / "out.npy") - logits_of(model, text).numpy()).max(), 1e-4)
                (folder / "pairs.jsonl").write_text(
                    "".join(json.dumps({"prompt_ids": t[:-4], "completion_ids": t[-4:]}) + "\n" for t in texts))
                for keys in ([], ["distributed.pp=2"], ["distributed.cp=2"], ["distributed.tp=2"]):
                    if name == "dynamic" and keys == ["distributed.tp=2"]:
                        continue  # nine heads do not divide by 2
                    with self.subTest(rope=name, keys=keys):
                        done = self.pptrain("generate", *settings(*keys), "--score", folder / "pairs.jsonl")
                        for text, line in zip(texts, done.stdout.splitlines(), strict=True):
                            logits = logits_of(model, text[:-1])[-4:].double()  # the last token is not read
                            chosen = logits.log_softmax(-1).gather(1, torch.tensor(text[-4:])[:, None]).sum().item()
                            self.assertLess(abs(json.loads(line)["log_probability"] - chosen), 1e-4)

    def test_rope_by_length_generates_what_transformers_does(self):
        prompts = [[3, 17, 5, 99, 8, 1, 44], [120], [7] * 30 + [2, 5], [(5 * i) % 131 for i in range(40)], [9] * 13]
        for name in BY_LENGTH:
            with tempfile.TemporaryDirectory() as path:
                folder = pathlib.Path(path)
                model, settings = self.by_length(folder, name)
                tokens = {"longrope": 60, "dynamic": 24}[name]
                expected = [greedy(copy.deepcopy(model), prompt, tokens) for prompt in prompts]
                for layout, keys in LAYOUTS.items():
                    with self.subTest(rope=name, layout=layout):
                        given = [x for p in prompts for x in ("--prompt-ids", ",".join(map(str, p)))]
                        done = self.pptrain("generate", *settings(*keys), *given, "--greedy", "--json", "--max-tokens", tokens)
                        self.assertEqual([json.loads(line)["ids"] for line in done.stdout.splitlines()], expected)

    def test_rope_by_length_has_the_losses_of_documents_of_transformers(self):
        numbers = random.Random(8)
        documents = [[numbers.randrange(131) for _ in range(length)] for length in (9, 17, 18, 25, 33, 34, 50, 64, 12, 40, 33, 60)]
        for name in BY_LENGTH:
            with tempfile.TemporaryDirectory() as path:
                folder = pathlib.Path(path)
                model, settings = self.by_length(folder, name)
                (folder / "ids.jsonl").write_text("".join(json.dumps({"ids": d}) + "\n" for d in documents))
                listed = ["data.format=jsonl", "data.tokens_key=ids", f"data.path={folder}/ids.jsonl", f"data.cache={folder}/cache",
                          "data.val_fraction=0", f"data.val_path={folder}/ids.jsonl", "train.seq_len=64", "train.grad_accum_steps=2"]
                expected = []
                for text in documents:
                    # The model reads every token, although nothing follows the last.
                    logits = logits_of(model, text)[:-1]
                    expected.append(torch.nn.functional.cross_entropy(logits, torch.tensor(text[1:])).item())
                for keys in (["data.packing=none"], ["data.packing=best_fit", "data.lengths=exact"],
                             ["data.packing=best_fit", "data.lengths=exact", "distributed.cp=2"],
                             ["data.packing=best_fit", "distributed.cp=2", "distributed.cp_kind=ulysses"] if name == "longrope" else
                             ["data.packing=best_fit", "distributed.pp=2", "train.grad_accum_steps=4"]):
                    with self.subTest(rope=name, keys=keys):
                        self.pptrain("eval", *settings(*listed, *keys), "--documents", folder / "documents.jsonl")
                        lines = [json.loads(line) for line in (folder / "documents.jsonl").read_text().splitlines()]
                        self.assertEqual([line["document"] for line in lines], [*range(len(documents))])
                        for line, loss in zip(lines, expected):
                            assert_within(self, abs(line["loss"] - loss), 2e-5)

    @exact
    def test_eval_of_a_run_is_its_own_validation(self):
        for name in BY_LENGTH:
            with tempfile.TemporaryDirectory() as path, self.subTest(rope=name):
                folder = pathlib.Path(path)
                self.by_length(folder, name)
                keys = [f'model.hf_dir="{folder}/hf"', *BY_LENGTH[name][2], "model.init=hf", "train.steps=2", "train.grad_accum_steps=1"]
                self.pptrain("--config", folder / "job.toml", *sets(*keys, "eval.interval=1"))
                records = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
                losses = [record["eval_loss"] for record in records if "eval_loss" in record]
                self.assertEqual(2, len(losses))
                found = json.loads(self.pptrain("eval", folder / "run", "--json").stdout)["loss"]
                self.assertEqual(losses[-1], found)

    def test_filtered_probabilities_equal_those_of_transformers(self):
        numbers = random.Random(5)
        cases, expected = [], []
        for _ in range(300):
            vocab = numbers.choice([2, 7, 131, 4000])
            logits = torch.tensor([numbers.gauss(0, numbers.choice([0.5, 3, 10])) for _ in range(vocab)])
            case = {
                "previous": [numbers.randrange(vocab) for _ in range(numbers.choice([1, 5, 40]))],
                "temperature": numbers.choice([1.0, 0.3, 0.7, 2.5]),
                "top_k": numbers.choice([0, 0, 1, 5, 50]),
                "top_p": numbers.choice([1.0, 1.0, 0.9, 0.5, 0.05]),
                "min_p": numbers.choice([0.0, 0.0, 0.02, 0.3]),
                "repetition_penalty": numbers.choice([1.0, 1.0, 1.3, 0.8]),
            }
            processors = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(case["repetition_penalty"]),
                                              TemperatureLogitsWarper(case["temperature"])])
            if case["top_k"]:
                processors.append(TopKLogitsWarper(case["top_k"]))
            if case["top_p"] < 1:
                processors.append(TopPLogitsWarper(case["top_p"]))
            if case["min_p"]:
                processors.append(MinPLogitsWarper(case["min_p"]))
            scores = processors(torch.tensor([case["previous"]]), logits[None].clone())
            expected.append(scores.double().softmax(-1)[0])
            cases.append({**case, "logits": logits.tolist()})
        text = "".join(json.dumps(case) + "\n" for case in cases)
        done = subprocess.run([ORACLE], input=text, capture_output=True, text=True, check=True)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), len(cases))
        for line, case, reference in zip(lines, cases, expected):
            ours = torch.tensor(json.loads(line), dtype=torch.float64)
            settings = {k: v for k, v in case.items() if k not in ("logits", "previous")}
            self.assertTrue(torch.equal(ours > 0, reference > 0), settings)
            assert_within(self, (ours - reference).abs().max(), 1e-5, settings)

    @exact
    def test_text_comes_from_the_tokenizer_beside_the_weights(self):
        from tokenizers import Tokenizer

        definition = pathlib.Path(__file__).resolve().parents[2] / "core/text/tokenizer/definitions/gpt2/tokenizer.json"
        tokenizer = Tokenizer.from_file(str(definition))
        torch.manual_seed(seed(3))
        config = LlamaConfig(**{**SIZES, "vocab_size": 700}, bos_token_id=None, eos_token_id=None)
        prompt = "All the world's a stage, "
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            LlamaForCausalLM(config).save_pretrained(folder / "model")
            (folder / "job.toml").write_text(JOB.format(folder=folder, arch="llama"))
            arguments = ["generate", "--config", folder / "job.toml", "--checkpoint", folder / "model", "--max-tokens", 20,
                         "--prompt", prompt, "--json", "--greedy"]
            self.pptrain(*arguments, code=2)  # ids alone
            (folder / "model/tokenizer.json").write_text(definition.read_text())
            given = ["--set", f"data.tokenizer={definition}"]
            for more in ([], given):
                answer = json.loads(self.pptrain(*arguments, *more).stdout)
                self.assertEqual(answer["prompt_ids"], tokenizer.encode(prompt).ids)
                self.assertEqual(len(answer["ids"]), 20)
                self.assertEqual(answer["text"], tokenizer.decode(answer["ids"]))


if __name__ == "__main__":
    unittest.main()
