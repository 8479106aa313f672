"""pptrain convert against Hugging Face's transformers, tokenizers and safetensors.

    convert_test.py PPTRAIN MODEL_ORACLE [unittest arguments]
"""

import filecmp
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.optim.swa_utils import AveragedModel
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()
torch.set_num_threads(1)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import pptrain  # noqa: E402
from bounds import assert_within, exact, seed  # noqa: E402
from pptrain import records, run, sets  # noqa: E402
from transformers_models import FAMILIES, build_family, shake_norms  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
ORACLE = pathlib.Path(sys.argv.pop(1)).resolve()
VOCAB = 131

# Sizes without common factors, so that a size used in another's place is found. tp = 2 divides the sharded ones.
SIZES = """hidden_size = 72
intermediate_size = 104
num_hidden_layers = 4
num_attention_heads = 6
num_key_value_heads = 2
head_dim = 20
vocab_size = 132
max_position_embeddings = 64
rms_norm_eps = 1e-5
rope_theta = 5000.0
initializer_range = 0.1
"""
LLAMA3 = """
[model.rope_scaling]
rope_type = "llama3"
factor = 8.0
low_freq_factor = 1.5
high_freq_factor = 4.5
original_max_position_embeddings = 32
"""
LINEAR = '\n[model.rope_scaling]\nrope_type = "linear"\nfactor = 3.0\n'
MODELS = {
    "llama": 'arch = "llama"\n' + SIZES + "attention_bias = true\nmlp_bias = true\n" + LLAMA3,
    "llama_tied": 'arch = "llama"\n' + SIZES + "tie_word_embeddings = true\n" + LINEAR,
    "qwen3": 'arch = "qwen3"\n' + SIZES + "attention_bias = true\n",
    "qwen3_moe": 'arch = "qwen3_moe"\n' + SIZES + "num_experts = 6\nnum_experts_per_tok = 3\n"
    "moe_intermediate_size = 44\nnorm_topk_prob = true\nmlp_only_layers = [1]\ntie_word_embeddings = true\n",
    "mixtral": 'arch = "mixtral"\n' + SIZES + "num_experts = 6\nnum_experts_per_tok = 2\n",
}
JOB = """
[run]
dir = "{folder}/run"
[train]
steps = 2
seq_len = 16
micro_batch_size = 2
grad_accum_steps = 2
dtype = "fp32"
[optimizer]
lr = 0.01
[data]
path = "{folder}/tokens.bin"
format = "bin"
val_fraction = 0.5
{data}
[eval]
batches = 0
[metrics]
peak_tflops = 1
[model]
{model}
"""
HF_SIZES = {
    "hidden_size": 72, "intermediate_size": 104, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 20, "vocab_size": VOCAB, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "initializer_range": 0.1, "bos_token_id": 1, "eos_token_id": 2,
}
HF = {
    "llama": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True, "attention_bias": True}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"tie_word_embeddings": False}),
    "qwen3_moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig,
                  {"num_experts": 7, "moe_intermediate_size": 44, "num_experts_per_tok": 3}),
    "mixtral": (MixtralForCausalLM, MixtralConfig, {"num_local_experts": 5, "num_experts_per_tok": 2}),
}


def make_tokens(path, vocab=VOCAB):
    tokens = torch.randint(0, vocab, (600,), generator=torch.Generator().manual_seed(seed(3)))
    path.write_bytes(tokens.to(torch.uint16).numpy().tobytes())
    return tokens


def make_tokenizer(folder):
    folder.mkdir()
    vocab = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", *"abcdefghij", "ab", "abc"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b"), ("ab", "c")], unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    end = {"__type": "AddedToken", "content": "</s>", "lstrip": False, "normalized": False, "rstrip": False,
           "single_word": False}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "special_tokens_map.json").write_text('{"bos_token": "<s>"}')
    (folder / "notes.txt").write_text("nobody's")


def save_hf(kind, folder, dtype=torch.float32, **options):
    torch.manual_seed(seed(2))
    model_class, config_class, changes = HF[kind]
    model = model_class(config_class(**HF_SIZES, **changes)).to(dtype)
    shake_norms(model)
    model.save_pretrained(folder, **options)
    return model


def files(folder):
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


class Case(pptrain.Case):
    def pptrain(self, *arguments, code=0):
        return run([PPTRAIN, *arguments], None, code=code)

    def convert(self, source, target, *options, code=0):
        return self.pptrain("convert", "--from", source, "--to", target, *options, code=code)

    def refused(self, source, target, *options, code=2):
        """The message, on one line."""
        before = files(self.folder)
        message = self.convert(source, target, *options, code=code).stderr
        self.assertEqual(files(self.folder), before, "a conversion that is refused leaves nothing")
        return message

    def write_job(self, name="llama", data="", model=None):
        job = self.folder / "job.toml"
        job.write_text(JOB.format(folder=self.folder, data=data, model=model or MODELS[name]))
        return job

    def train(self, name="llama", *keys, data=""):
        tokens = make_tokens(self.folder / "tokens.bin")
        job = self.write_job(name, data)
        self.pptrain("--config", job, *(x for key in keys for x in ("--set", key)))
        return job, tokens

    def eval(self, job, checkpoint):
        done = self.pptrain("eval", "--config", job, "--checkpoint", checkpoint, "--batches", 0, "--json")
        return json.loads(done.stdout)["loss"]

    def assert_same_folder(self, left, right):
        self.assertEqual(files(left), files(right))
        for name in files(left):
            self.assertTrue(filecmp.cmp(left / name, right / name, shallow=False), name)

    def near(self, actual, expected, tolerance, what):
        error = ((actual.double() - expected.double()).norm() / expected.double().norm()).item()
        assert_within(self, error, tolerance, what, callers=2)


class CheckpointToHf(Case):
    def oracle_logits(self, folder, tokens):
        source, target = self.folder / "input.st", self.folder / "output.st"
        save_file({"tokens": tokens[None, None], "labels": tokens[None, None].clone(),
                   "filling": torch.zeros_like(tokens[None, None], dtype=torch.bool), "lr": torch.zeros(1).double(),
                   "weight_decay": torch.zeros(1).double(), "losses": torch.zeros(2).double()}, source)
        done = subprocess.run([ORACLE, source, target, "2", folder], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return load_file(target)["logits"]

    def check_model(self, name):
        job, tokens = self.train(name)
        out = self.folder / "out"
        self.convert(self.folder / "run", out)
        model = AutoModelForCausalLM.from_pretrained(out, attn_implementation="eager").eval()
        self.assertEqual(model.dtype, torch.float32)
        nats, count, held = 0.0, 0, tokens[300:].tolist()
        for first in range(0, len(held) - 1, 16):  # as in eval: samples of 16 tokens, the last one shorter
            row = torch.tensor([held[first:first + 17]])
            with torch.no_grad():
                logits = model(row[:, :-1]).logits[0]
            nats += torch.nn.functional.cross_entropy(logits, row[0, 1:], reduction="sum").item()
            count += row.shape[1] - 1
        loss = [record["eval_loss"] for record in records(self.folder / "run") if "eval_loss" in record][-1]  # as eval reports it
        assert_within(self, abs(loss - nats / count), 1e-5)
        self.assertEqual(self.eval(job, out), loss)  # the directory's weights are the checkpoint's, to the bit
        prompts = tokens[:64].view(2, 32)
        with torch.no_grad():
            self.near(self.oracle_logits(out, prompts), model(prompts).logits, 1e-5, "logits")
        with safe_open(out / "model.safetensors", "pt") as file:
            self.assertEqual(file.metadata(), {"format": "pt"})
            self.assertEqual("lm_head.weight" in file.keys(), "tie_word_embeddings" not in MODELS[name])
        self.assertFalse((out / "model.safetensors.index.json").exists())
        return model

    def test_llama_with_llama3_rope_and_biases(self):
        model = self.check_model("llama")
        rope = model.config.rope_parameters
        self.assertEqual((rope["rope_type"], rope["rope_theta"], rope["low_freq_factor"], rope["high_freq_factor"],
                          rope["original_max_position_embeddings"]), ("llama3", 5000.0, 1.5, 4.5, 32))
        self.assertIsNone(model.config.eos_token_id)  # without a tokenizer it is not known

    def test_tied_llama_with_linear_rope(self):
        self.check_model("llama_tied")

    def test_qwen3(self):
        self.check_model("qwen3")

    def test_tied_qwen3_moe_among_dense_layers(self):
        self.check_model("qwen3_moe")

    def test_mixtral(self):
        self.check_model("mixtral")

    @exact
    def test_layouts_give_the_same_directory(self):
        # At learning rate 0 all layouts save the seed's weights.
        layouts = {"llama": (["pp=2", "tp=2"], ["dp_shard=2"], ["pp=2", "dp_shard=2"]),
                   "qwen3_moe": (["pp=2", "dp_shard=2", "ep=2"], ["tp=2"])}
        for name, meshes in layouts.items():
            for i, mesh in enumerate([[], *meshes]):
                keys = ["optimizer.lr=0", "train.steps=1", f'run.dir="{self.folder}/{name}{i}"']
                self.train(name, *keys, *(f"distributed.{key}" for key in mesh))
                self.convert(self.folder / f"{name}{i}", self.folder / f"{name}{i}_hf")
                with self.subTest(model=name, mesh=mesh):
                    self.assert_same_folder(self.folder / f"{name}0_hf", self.folder / f"{name}{i}_hf")
            stored = list((self.folder / f"{name}1/checkpoints/step_1").rglob("model*.safetensors"))
            self.assertGreater(len(stored), 3, "weights lie in slices")

    @exact
    def test_a_run_in_fp8_gives_the_same_directory(self):
        losses = {}
        for kind in ("off", "rowwise"):
            run_dir = self.folder / kind
            self.train("llama", "optimizer.lr=0", "train.steps=1", f'run.dir="{run_dir}"', "train.dtype=bf16", f"train.fp8={kind}",
                       "model.hidden_size=64", "model.intermediate_size=112", "model.head_dim=16")
            self.convert(run_dir, self.folder / f"{kind}_hf")
            losses[kind] = [record["loss"] for record in records(run_dir) if "loss" in record]
        self.assertNotEqual(losses["off"], losses["rowwise"])
        self.assert_same_folder(self.folder / "off_hf", self.folder / "rowwise_hf")

    def test_average_of_weights(self):
        """torch's AveragedModel of the weights after each step, from those of the seed on."""
        def weights(run, step, *options):
            out = self.folder / "out"
            self.convert(self.folder / run / f"checkpoints/step_{step}", out, *options, "--overwrite")
            return AutoModelForCausalLM.from_pretrained(out)

        def average(old, new, updates):
            return old + (1 - min(0.25, (1 + updates) / (10 + updates))) * (new - old)

        self.train("llama", "optimizer.lr=0", "train.steps=1", f'run.dir="{self.folder}/start"')
        self.assertIn("optimizer.ema_decay", self.refused(self.folder / "start", self.folder / "no", "--ema"))
        self.train("llama", "train.steps=4", "checkpoint.interval=1", "checkpoint.keep_last_n=0", "optimizer.ema_decay=0.25",
                   "distributed.pp=2", "distributed.dp_shard=2")
        oracle = AveragedModel(weights("start", 1), avg_fn=average)
        oracle.update_parameters(weights("start", 1))
        for step in range(1, 5):
            oracle.update_parameters(weights("run", step))
        averaged = weights("run", 4, "--ema").state_dict()
        for name, expected in oracle.module.state_dict().items():
            self.near(averaged[name], expected, 1e-6, name)
        self.assertFalse(torch.equal(averaged["lm_head.weight"], weights("run", 4).state_dict()["lm_head.weight"]))

    @exact
    def test_tokenizer_types_and_shards(self):
        make_tokenizer(self.folder / "tok")
        self.train(data=f'tokenizer = "{self.folder}/tok/tokenizer.json"')
        out = self.folder / "out"
        self.convert(self.folder / "run", self.folder / "plain")
        self.assertEqual((self.folder / "plain/tokenizer.json").read_bytes(), (self.folder / "tok/tokenizer.json").read_bytes())
        self.assertEqual(json.loads((self.folder / "plain/config.json").read_text())["eos_token_id"], 2)
        done = self.convert(self.folder / "run/checkpoints", out, "--dtype", "bf16", "--max-shard-gb", 100e3 / 1e9,
                            "--tokenizer", self.folder / "tok/tokenizer.json")
        self.assertIn("step 2", done.stdout)
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            self.assertEqual((out / name).read_bytes(), (self.folder / "tok" / name).read_bytes())
        self.assertFalse((out / "notes.txt").exists())
        config = json.loads((out / "config.json").read_text())
        self.assertEqual((config["bos_token_id"], config["eos_token_id"], config["torch_dtype"]), (1, 2, "bfloat16"))
        self.assertEqual(json.loads((out / "generation_config.json").read_text())["eos_token_id"], 2)
        self.assertEqual(AutoTokenizer.from_pretrained(out)("abc ab").input_ids, [14, 13])
        index = json.loads((out / "model.safetensors.index.json").read_text())
        shards = sorted(set(index["weight_map"].values()))
        self.assertEqual(shards, [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)])
        self.assertGreater(len(shards), 3)
        tensors = {}
        for shard in shards:
            one = load_file(out / shard)
            self.assertTrue(all(index["weight_map"][key] == shard for key in one))
            self.assertTrue(len(one) == 1 or sum(t.nbytes for t in one.values()) <= 100e3)
            tensors.update(one)
        self.assertEqual(index["metadata"]["total_size"], sum(t.nbytes for t in tensors.values()))
        for key, tensor in load_file(self.folder / "plain/model.safetensors").items():
            self.assertTrue(torch.equal(tensors[key], tensor.to(torch.bfloat16)), key)
        self.assertEqual(AutoModelForCausalLM.from_pretrained(out).dtype, torch.bfloat16)


@exact
class Tokenizers(Case):
    """convert writes the tokenizer and the end tokens unasked, so that transformers ends a text at the same token as generate."""

    def check_ends(self, folder, expected):
        """Compares the text of generate, from the run, with the text of transformers, from `folder`."""
        done = self.pptrain("generate", "--config", self.folder / "job.toml", "--prompt", "abc ab", "--max-tokens", 40,
                            "--temperature", 0, "--json")
        ours = json.loads(done.stdout)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        stops = model.generation_config.eos_token_id
        self.assertEqual(set(stops if isinstance(stops, list) else [stops]), expected)
        prompt = AutoTokenizer.from_pretrained(folder)("abc ab", return_tensors="pt").input_ids
        theirs = model.generate(prompt, do_sample=False, max_new_tokens=40, pad_token_id=0)[0, prompt.shape[1]:].tolist()
        self.assertIn(theirs.pop(), expected)
        self.assertLess(len(theirs), 39)
        self.assertEqual(ours["ids"], theirs)
        self.assertEqual(ours["finish"], "stop")

    def write_hf(self):
        """A model that soon predicts token 5. generation_config.json ends a text at 5; the tokenizer ends it at 2."""
        model = save_hf("qwen3", self.folder / "hf")
        with torch.no_grad():
            model.lm_head.weight[5] = model.lm_head.weight.abs().sum(0) / 20
        model.save_pretrained(self.folder / "hf")
        make_tokenizer(self.folder / "tok")
        shutil.copytree(self.folder / "tok", self.folder / "hf", dirs_exist_ok=True)
        (self.folder / "hf/generation_config.json").write_text('{"eos_token_id": 5, "top_k": 7}')
        (self.folder / "hf/chat_template.jinja").write_text("{{ messages }}")
        make_tokens(self.folder / "tokens.bin")
        return self.write_job(model=f'hf_dir = "{self.folder}/hf"\ninit = "hf"')

    def test_of_hf_dir_and_with_merged_adapters(self):
        job = self.write_hf()
        self.pptrain("--config", job, *sets("optimizer.lr=0"))
        self.convert(self.folder / "run", self.folder / "out")
        self.check_ends(self.folder / "out", {2, 5})
        ends = json.loads((self.folder / "out/generation_config.json").read_text())
        self.assertEqual((ends["top_k"], set(ends["eos_token_id"])), (7, {2, 5}))
        self.assertEqual(json.loads((self.folder / "out/config.json").read_text())["eos_token_id"], [2, 5])
        tokenizer = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"}
        self.assertLessEqual(tokenizer, files(self.folder / "out"))
        shutil.rmtree(self.folder / "run")
        self.pptrain("--config", job, *sets("lora.rank=2", "optimizer.lr=0"))
        self.convert(self.folder / "run", self.folder / "merged", "--merge")
        self.assertEqual(files(self.folder / "merged"), files(self.folder / "out"))
        self.assertEqual(json.loads((self.folder / "merged/config.json").read_text())["eos_token_id"], [2, 5])
        self.convert(self.folder / "run", self.folder / "adapter")
        self.assertLessEqual(tokenizer, files(self.folder / "adapter"))
        for options in (), ("--merge",):  # the base is needed to go on
            message = self.refused(self.folder / "run", self.folder / "hf", "--overwrite", *options)
            self.assertIn("frozen weights", message)

    def test_what_is_no_tokenizer_is_not_published(self):
        """The job of a checkpoint could name any file as a tokenizer."""
        make_tokenizer(self.folder / "tok")
        named = (self.folder / "tok/tokenizer.json").rename(self.folder / "tok/mine.json")
        self.train(data=f'tokenizer = "{named}"')
        self.convert(self.folder / "run", self.folder / "out")
        self.assertEqual((self.folder / "out/tokenizer.json").read_bytes(), named.read_bytes())
        named.write_text('{"secret": 1}')
        done = self.convert(self.folder / "run", self.folder / "other")
        self.assertIn("no tokenizer written: ", done.stderr)
        self.assertFalse(any("token" in name for name in files(self.folder / "other")))
        named.unlink()
        self.assertIn("is not there; --tokenizer PATH adds one", self.convert(self.folder / "run", self.folder / "third").stderr)


class HfAndBack(Case):
    def round_trip(self, source, step=0):
        """Converts to a checkpoint and back; returns the checkpoint. verify() checks all of them together."""
        checkpoint = self.folder / f"checkpoints/step_{step}"
        self.convert(source, checkpoint)
        self.convert(checkpoint, self.folder / "back")
        self.assert_same_folder(source, self.folder / "back")
        return checkpoint

    def verify(self, count=1):
        said = self.pptrain("verify", self.folder / "checkpoints").stdout
        self.assertEqual((said.count(": sound"), len(said.splitlines())), (count, count))

    @exact
    def test_every_architecture_byte_for_byte(self):
        forms = {"llama": (torch.bfloat16, {}), "qwen3": (torch.float32, {"max_shard_size": "200KB"}),
                 "qwen3_moe": (torch.bfloat16, {"max_shard_size": "200KB"}),
                 "mixtral": (torch.float16, {"save_original_format": False})}
        for i, (kind, (dtype, options)) in enumerate(forms.items()):
            with self.subTest(kind=kind):
                source = self.folder / "hf"
                save_hf(kind, source, dtype, **options)
                self.assertEqual((source / "model.safetensors.index.json").exists(), "max_shard_size" in options)
                self.round_trip(source, i)
                for name in ("hf", "back"):
                    shutil.rmtree(self.folder / name)
        self.verify(len(forms))

    def test_families_byte_for_byte_and_in_a_new_directory(self):
        torch.manual_seed(seed(2))
        for i, name in enumerate(FAMILIES):
            with self.subTest(family=name):
                for part in ("hf", "back", "new"):
                    shutil.rmtree(self.folder / part, ignore_errors=True)
                model = build_family(name)
                options = {"max_shard_size": "200KB"} if i % 2 else {}
                model.to(torch.bfloat16 if i % 3 == 0 else torch.float32).save_pretrained(self.folder / "hf", **options)
                checkpoint = self.round_trip(self.folder / "hf", i)
                self.convert(checkpoint, self.folder / "new", "--dtype", "fp32")
                # The model is read again, since a model in bfloat16 has rounded its rotary frequencies too.
                first, new = (AutoModelForCausalLM.from_pretrained(self.folder / part, dtype=torch.float32, pad_token_id=0)
                              for part in ("hf", "new"))
                ids = torch.arange(2 * 32).view(2, 32)
                with torch.no_grad():
                    self.near(new(ids).logits, first(ids).logits, 1e-6, name)
        self.verify(len(FAMILIES))

    @exact
    def test_a_snapshot_of_the_hub_with_all_that_lies_there(self):
        # Links to blobs, subfolders, another writer's header, tensors that are not parameters, a tied head.
        blobs, source = self.folder / "hub/blobs", self.folder / "hub/snapshots/main"
        source.parent.mkdir(parents=True)
        model = save_hf("llama", blobs, torch.bfloat16)
        make_tokenizer(source)
        tensors = {**load_file(blobs / "model.safetensors"),
                   "model.layers.0.self_attn.rotary_emb.inv_freq": torch.rand(10),
                   "numbers": torch.arange(7)}
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        header, data = {"__metadata__": {"format": "pt", "who": "somebody \u00e9"}}, b""
        for name, tensor in sorted(tensors.items(), reverse=True):
            kind = {torch.bfloat16: "BF16", torch.float32: "F32", torch.int64: "I64"}[tensor.dtype]
            raw = bytes(tensor.contiguous().flatten().view(torch.uint8).numpy())
            header[name] = {"shape": list(tensor.shape), "dtype": kind, "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
        text = json.dumps(header, indent=1).encode() + b"   "
        (blobs / "weights").write_bytes(struct.pack("<Q", len(text)) + text + data)
        (source / "model.safetensors").symlink_to(blobs / "weights")
        (source / "config.json").symlink_to(blobs / "config.json")
        (source / "more").mkdir()
        (source / "more/README \u00e9.md").write_text("# about\n")
        (source / ".gitattributes").write_text("*.bin lfs\n")
        (source / "empty").write_bytes(b"")
        self.round_trip(source)
        self.verify()
        self.assertFalse((self.folder / "back/model.safetensors").is_symlink())
        back = AutoModelForCausalLM.from_pretrained(self.folder / "back")
        for name, parameter in model.named_parameters():
            self.assertTrue(torch.equal(parameter, dict(back.named_parameters())[name]), name)

    @exact
    def test_another_type_is_a_new_directory_with_the_tokenizer(self):
        source, out = self.folder / "hf", self.folder / "out"
        make_tokenizer(source)
        save_hf("qwen3_moe", source, torch.bfloat16, save_original_format=False)
        self.convert(source, self.folder / "checkpoint")
        self.convert(self.folder / "checkpoint", out, "--dtype", "fp32")
        self.assertEqual((out / "tokenizer.json").read_bytes(), (source / "tokenizer.json").read_bytes())
        tokens = torch.arange(20)[None]
        with torch.no_grad():
            theirs = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)(tokens).logits
            ours = AutoModelForCausalLM.from_pretrained(out)(tokens).logits
        self.assertTrue(torch.equal(ours, theirs))

    @exact
    def test_the_bias_on_experts_stays_in_float32_and_a_tokenizer_goes_along_in_any_form(self):
        source, out = self.folder / "hf", self.folder / "out"
        model = build_family("deepseek_v3")
        name = "model.layers.2.mlp.gate.e_score_correction_bias"
        bias = dict(model.named_buffers())[name]
        bias.copy_(8 + torch.arange(len(bias)) * 0.01)  # bfloat16 has steps of 1/16 there
        model.save_pretrained(source)
        (source / "tokenizer.model").write_bytes(b"pieces")
        (source / "tokenizer_config.json").write_text("{}")
        self.convert(source, self.folder / "checkpoint")
        said = self.convert(self.folder / "checkpoint", out, "--dtype", "bf16", "--max-shard-gb", 1e-4).stdout
        self.assertNotIn("no tokenizer written", said)
        for file in ("tokenizer.model", "tokenizer_config.json"):
            self.assertEqual((out / file).read_bytes(), (source / file).read_bytes())
        index = json.loads((out / "model.safetensors.index.json").read_text())
        tensors = {key: load_file(out / shard)[key] for key, shard in index["weight_map"].items()}
        self.assertTrue(torch.equal(tensors[name], bias))
        self.assertEqual(index["metadata"]["total_size"], sum(t.nbytes for t in tensors.values()))
        for key, tensor in tensors.items():
            self.assertEqual(tensor.dtype, torch.float32 if key.endswith("e_score_correction_bias") else torch.bfloat16, key)
        config = json.loads((out / "config.json").read_text())
        self.assertEqual((config["scoring_func"], config["topk_method"], config["moe_layer_freq"]), ("sigmoid", "noaux_tc", 1))

    @exact
    def test_a_run_begins_with_it_as_with_the_directory(self):
        source, checkpoint = self.folder / "hf", self.folder / "c/checkpoints/step_0"  # a run in c finds it there by itself
        save_hf("qwen3", source, torch.bfloat16)
        make_tokens(self.folder / "tokens.bin")
        self.convert(source, checkpoint)
        job = self.write_job(model=f'hf_dir = "{source}"')
        self.assertEqual(self.eval(job, checkpoint), self.eval(job, source))
        message = self.pptrain("--config", job, "--set", f'run.dir="{self.folder}/d"', "--set", f'checkpoint.resume="{checkpoint}"',
                               "--set", "model.rope_theta=77.0", code=2).stderr
        self.assertIn("model.rope_theta was", message)
        losses = []
        for name, key in (("a", f'checkpoint.resume="{checkpoint}"'), ("b", 'model.init="hf"'), ("c", "train.steps=2")):
            done = self.pptrain("--config", job, *sets(f'run.dir="{self.folder}/{name}"', key, "optimizer.name=lion",
                                                       "run.seed=5", "distributed.pp=2"))
            losses.append([record["loss"] for record in records(self.folder / name) if record.get("loss")])
            self.assertEqual("weights alone" in done.stderr + done.stdout, name != "b")
        self.assertEqual(len(losses[0]), 2)
        self.assertEqual(losses, [losses[0]] * 3)

    @exact
    def test_memory_does_not_grow_with_the_model(self):
        # A small process starts it: the peak memory of a process begins with its parent's.
        start = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=sys.stderr); "
                 "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")

        def peak(*arguments):
            done = run([sys.executable, "-c", start, PPTRAIN, "convert", *arguments], None)
            return int(done.stdout) / 1024  # MiB
        peaks = {}
        for layers in (48, 1):  # the large one first: the small one finds the program's libraries in the page cache
            source = self.folder / f"hf{layers}"
            config = LlamaConfig(**{**HF_SIZES, "hidden_size": 512, "intermediate_size": 1024, "head_dim": 64,
                                    "num_attention_heads": 8, "num_hidden_layers": layers})
            with torch.device("meta"):
                names = {name: p.shape for name, p in LlamaForCausalLM(config).named_parameters()}
            source.mkdir()
            config.architectures = ["LlamaForCausalLM"]
            config.save_pretrained(source)
            save_file({name: torch.full(shape, 0.5, dtype=torch.bfloat16) for name, shape in names.items()},
                      source / "model.safetensors", {"format": "pt"})
            checkpoint, back = self.folder / f"checkpoint{layers}", self.folder / f"back{layers}"
            twice = [(peak("--from", source, "--to", checkpoint, *more), peak("--from", checkpoint, "--to", back, *more))
                     for more in ([], ["--overwrite"])]
            peaks[layers] = [(min if layers == 48 else max)(times) for times in zip(*twice)]  # the smallest growth of two runs
        grown = sum(p.stat().st_size for p in (self.folder / "checkpoint48").rglob("*") if p.is_file()) / 2**20
        self.assertGreater(grown, 400)  # MiB of float32, in tensors of at most 2 MiB
        for small, large in zip(peaks[1], peaks[48]):
            # How much of the program's libraries (90 MiB in all) is in memory varies.
            self.assertGreater(small, 30)
            self.assertLess(large - small, grown / 3)


@exact
class Refusals(Case):
    def test_places(self):
        source = self.folder / "hf"
        save_hf("qwen3", source, torch.bfloat16)
        checkpoint = self.folder / "checkpoint"
        self.convert(source, checkpoint)
        self.assertIn("there is no", self.refused(self.folder / "none", self.folder / "out"))
        (self.folder / "other").mkdir()
        self.assertIn("no checkpoint", self.refused(self.folder / "other", self.folder / "out"))
        self.assertIn("is there already", self.refused(source, checkpoint))
        self.assertIn("which --from reads", self.refused(source, source, "--overwrite"))
        self.assertIn("lies in", self.refused(source, source / "new"))
        self.assertIn("holds", self.refused(source, self.folder, "--overwrite"))
        link = self.folder / "link"
        link.symlink_to(source)
        self.assertIn("which --from reads", self.refused(link, source, "--overwrite"))
        self.assertIn("--dtype", self.refused(source, self.folder / "out", "--dtype", "bf16"))
        self.assertIn("--tokenizer", self.refused(checkpoint, self.folder / "out", "--tokenizer", self.folder / "other"))
        (self.folder / "file").write_text("")
        self.assertIn("no folder", self.refused(source, self.folder / "file", "--overwrite"))

    def test_overwrite_replaces_conversions_alone(self):
        source, out, checkpoint = self.folder / "hf", self.folder / "out", self.folder / "checkpoint"
        save_hf("qwen3", source, torch.bfloat16, max_shard_size="200KB")
        (source / "README.md").write_text("about")
        checkpoint.mkdir()  # an empty folder is no obstacle
        self.convert(source, checkpoint)
        self.convert(source, checkpoint, "--overwrite")
        self.convert(checkpoint, out, "--dtype", "fp16")
        self.convert(checkpoint, out, "--overwrite")
        self.assert_same_folder(source, out)
        self.convert(checkpoint, out, "--overwrite")
        (out / "mine.txt").write_text("mine")
        self.assertIn("mine.txt", self.refused(checkpoint, out, "--overwrite"))
        (checkpoint / "stage_0/mine.txt").write_text("mine")
        self.assertIn("stage_0/mine.txt", self.refused(source, checkpoint, "--overwrite"))
        self.train()
        run = self.folder / "run/checkpoints/step_2"
        self.assertIn("optimizer state", self.refused(source, run, "--overwrite"))
        foreign = re.search(r"holds (\S+), which no conversion has written", self.refused(source, self.folder / "run", "--overwrite"))
        self.assertTrue((self.folder / "run" / foreign[1]).is_file())

    def test_weights_that_cannot_be_kept(self):
        source = self.folder / "hf"
        save_hf("qwen3", source, torch.bfloat16)
        path, good = source / "model.safetensors", load_file(source / "model.safetensors")
        name = "model.layers.1.mlp.up_proj.weight"
        nan = good[name].clone()
        nan.view(torch.int16)[3, 4] = 0x7FA1
        cases = {
            "F64": {name: good[name].double()},
            "no number": {name: nan},
            "has shape": {name: good[name][:-1]},
            "no place": {"model.layers.0.mlp.up_proj.bias": torch.zeros(104)},
        }
        for message, change in cases.items():
            with self.subTest(message=message):
                save_file({**good, **change}, path, {"format": "pt"})
                refusal = self.refused(source, self.folder / "out", code=1)
                self.assertIn(message, refusal)
                self.assertIn(next(iter(change)), refusal)
        save_file({key: value for key, value in good.items() if key != name}, path, {"format": "pt"})
        self.assertIn(name, self.refused(source, self.folder / "out", code=1))

    def test_damage_is_named(self):
        source, checkpoint = self.folder / "hf", self.folder / "checkpoint"
        save_hf("qwen3", source, torch.bfloat16)
        self.convert(source, checkpoint)
        names = ("stage_0/model.safetensors", "hf/files/config.json", "hf/headers/model.safetensors")
        for step, name in enumerate(names):
            with self.subTest(name=name):
                damaged = self.folder / f"damaged/step_{step}"
                shutil.copytree(checkpoint, damaged)
                good = (damaged / name).read_bytes()
                (damaged / name).write_bytes(good[:-3] + bytes([good[-3] ^ 1]) + good[-2:])
                self.assertIn(name, self.refused(damaged, self.folder / "out", code=1))
        said = self.pptrain("verify", self.folder / "damaged", code=1).stdout
        for step, name in enumerate(names):
            self.assertRegex(said, f"step_{step}.*{name}")

    def test_what_transformers_has_no_place_for(self):
        self.train("mixtral", "model.router_bias_update_rate=0.001")
        self.assertIn("router_bias_update_rate", self.refused(self.folder / "run", self.folder / "out"))

    def test_values_beyond_half(self):
        source, checkpoint = self.folder / "hf", self.folder / "checkpoint"
        save_hf("qwen3", source)
        tensors = load_file(source / "model.safetensors")
        tensors["model.norm.weight"][5] = 1e6
        save_file(tensors, source / "model.safetensors", {"format": "pt"})
        self.convert(source, checkpoint)
        message = self.refused(checkpoint, self.folder / "out", "--dtype", "fp16", code=1)
        self.assertIn("norm.weight", message)


if __name__ == "__main__":
    unittest.main()
