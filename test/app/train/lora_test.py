"""Runs with adapters against transformers, peft and torch.optim.

    lora_test.py PPTRAIN [unittest arguments]
"""

import copy
import dataclasses
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()

from oracle.compare import relative, same, way  # noqa: E402
from oracle.initial_values import initial_values  # noqa: E402
from oracle.job import VOCAB, Data, Job, run_pptrain, write_data  # noqa: E402
from oracle.reference import build, run_model, train  # noqa: E402
from bounds import assert_within, seed  # noqa: E402
from pptrain import run, sets  # noqa: E402

torch.set_num_threads(1)
RANK, ALPHA = 4, 6
MODULES = {"q_proj": "attn.q", "k_proj": "attn.k", "v_proj": "attn.v", "o_proj": "attn.o", "gate_proj": "mlp.gate",
           "up_proj": "mlp.up", "down_proj": "mlp.down"}
WEIGHTS = "adapter_model.safetensors"


@dataclasses.dataclass(frozen=True)
class LoraJob(Job):
    """Only adapters are trained, so groups of other parameters would do nothing."""

    targets: tuple = tuple(MODULES)

    def toml(self, model):
        text = super().toml(model)
        first, last = text.index('[[optimizer.groups]]\nmatch = "embedding"'), text.rindex("[[optimizer.groups]]")
        targets = ", ".join(f'"*.{MODULES[module]}"' for module in self.targets)
        return text[:first] + text[last:] + f"[lora]\nrank = {RANK}\nalpha = {ALPHA}\ntargets = [{targets}]\n"


def saved_adapters(model):
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(pathlib.Path(folder) / WEIGHTS)


def adapted(job, model):
    """`model` with the adapters that pptrain begins with."""
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(job.targets), task_type="CAUSAL_LM")
    model = get_peft_model(model, config)
    for name, parameter in model.named_parameters():
        if "lora_A" not in name:
            continue
        _, _, _, _, layer, _, module = name.split(".lora_A")[0].split(".")
        std = 1 / math.sqrt(3 * parameter.shape[1])
        values = initial_values(f"layers.{layer}.{MODULES[module]}.lora_a.weight", parameter.shape, job.seed, std)
        parameter.data.copy_(torch.from_numpy(values))
    return model


class Lora(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pptrain_lora_"))
        self.addCleanup(shutil.rmtree, self.folder)
        write_data(self.folder)

    def prepare(self, job):
        model = build(job.arch)
        model.save_pretrained(self.folder / "hf")
        return model, f'hf_dir = "{self.folder / "hf"}"\ninit = "hf"'

    def check(self, job):
        model, keys = self.prepare(job)
        start = saved_adapters(adapted(job, copy.deepcopy(model)))
        truth = train(job, adapted(job, model).double(), Data(job), saved=saved_adapters)
        self.assertLess(truth.loss[-1], truth.loss[0] - 0.2, "the steps must matter")
        actual = run_pptrain(PPTRAIN, self.folder, job, keys, weights=WEIGHTS)
        same(self, actual, truth, way(start, truth.weights))

    def merged(self, model_class):
        run([PPTRAIN, "convert", "--from", "run", "--to", "merged", "--merge"], self.folder)
        return model_class.from_pretrained(self.folder / "merged", attn_implementation="eager").eval()

    def logits(self, model):
        tokens = torch.arange(24).remainder(VOCAB)[None]
        with torch.inference_mode():
            return model(input_ids=tokens, use_cache=False).logits

    def test_trains_as_peft_does_and_exports_what_peft_loads(self):
        job = LoraJob(lr=2e-2, clip=0.7)
        self.check(job)
        folder = self.folder
        exported = PeftModel.from_pretrained(build(job.arch), folder / "trained").eval()
        self.check_logits(build(job.arch).eval(), exported, self.merged(type(build(job.arch))))
        config = json.loads((folder / "trained/adapter_config.json").read_text())
        self.assertEqual(sorted(config["target_modules"]), sorted(MODULES))
        self.assertEqual(config["base_model_name_or_path"], str(folder / "hf"))
        self.check_eval(job, exported)
        self.check_other_base()

    def check_logits(self, base, exported, merged):
        expected = self.logits(exported)
        self.assertGreater((expected - self.logits(base)).abs().max().item(), 0.1)
        assert_within(self, (self.logits(merged) - expected).abs().max(), 1e-5 * expected.abs().max())

    def check_eval(self, job, model):
        """Compares eval of the run, and of the merged model without adapters, with transformers."""
        data = Data(job)
        nats = targets = 0
        for _, batches in data.validations():
            for rows in batches:
                with torch.inference_mode():
                    logits = run_model(model, rows).logits
                nats += torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), rows.labels.flatten(),
                                                          reduction="sum").item()
                targets += rows.valid
        command = [PPTRAIN, "eval", "--config", "job.toml", "--json"]
        loss = json.loads(run(command, self.folder).stdout)["loss"]
        assert_within(self, relative(loss, nats / targets), 1e-5)
        merged = run([*command, "--checkpoint", "merged", *sets("lora.rank=0")], self.folder)
        assert_within(self, relative(json.loads(merged.stdout)["loss"], loss), 1e-5)

    def check_other_base(self):
        other = build("llama")
        with torch.no_grad():
            other.model.layers[1].mlp.up_proj.weight.mul_(1.01)
        other.save_pretrained(self.folder / "hf")
        for command in (["--config", "job.toml"], ["eval", "--config", "job.toml"],
                        ["convert", "--from", "run", "--to", "again", "--merge"]):
            failed = subprocess.run([PPTRAIN, *command], cwd=self.folder, capture_output=True, text=True, timeout=300)
            self.assertEqual(failed.returncode, 2, failed.stderr)
            self.assertIn("was trained on the frozen weights of", failed.stderr)

    def test_exports_adapters_of_gpt2(self):
        """GPT-2's modules have weights [in, out], and two modules of a layer share a name."""
        torch.manual_seed(seed(2))
        base = GPT2LMHeadModel(GPT2Config(n_embd=48, n_layer=3, n_head=4, n_positions=64, vocab_size=VOCAB)).eval()
        base.save_pretrained(self.folder / "hf")
        job = LoraJob(lr=2e-2, clip=0.7, targets=("o_proj", "up_proj", "down_proj"))
        run_pptrain(PPTRAIN, self.folder, job, f'hf_dir = "{self.folder / "hf"}"\ninit = "hf"', weights=WEIGHTS)
        exported = PeftModel.from_pretrained(copy.deepcopy(base), self.folder / "trained").eval()
        self.check_logits(base, exported, self.merged(GPT2LMHeadModel))
        config = json.loads((self.folder / "trained/adapter_config.json").read_text())
        self.assertEqual(sorted(config["target_modules"]), ["c_fc", "c_proj"])
        self.assertTrue(config["fan_in_fan_out"])

    def test_some_projections_of_qwen3(self):
        self.check(LoraJob(arch="qwen3", lr=2e-2, clip=0.7, targets=("q_proj", "v_proj")))


if __name__ == "__main__":
    unittest.main()
