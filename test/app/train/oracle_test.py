"""Runs of the program against transformers and torch.optim: the same job, computed there from what is documented alone.

    oracle_test.py PPTRAIN [unittest arguments]

The reference computes in float64. A float32 run has to stay within rounding of it in every loss, norm, validation and
weight; of a bf16 run the errors are compared with those of transformers' model in bf16. `eps` is large: divided by a
small one, a gradient that is zero but for rounding would become a whole step.
"""

import copy
import dataclasses
import pathlib
import shutil
import sys
import tempfile
import unittest

import torch

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()

from oracle.compare import LOSS, NORM, relative, same, way  # noqa: E402
from oracle.initial_values import initial_values  # noqa: E402
from oracle.job import Data, Job, run_pptrain, write_data  # noqa: E402
from oracle.reference import CLASSES, SIZES, build, saved, train  # noqa: E402
from transformers_models import ClosestTie  # noqa: E402

torch.set_num_threads(1)
HF = 'hf_dir = "hf"\ninit = "hf"'
DOCUMENT_END = 7
BF16 = 1.2  # errors in bf16 over those of transformers


def errors(result, truth, start):
    """Root mean squares, of each kind of figures."""
    moved = sum((truth.weights[name] - start[name]).square().sum() for name in start)
    off = sum((result.weights[name].double() - truth.weights[name]).square().sum() for name in start)
    mean = lambda pairs: torch.tensor([relative(a, b) for a, b in pairs]).square().mean().sqrt().item()
    validations = [(result.validation[step][""][0], truth.validation[step][""][0]) for step in truth.validation]
    return {"losses": mean(zip(result.loss, truth.loss)), "norms": mean(zip(result.norm, truth.norm)),
            "validation losses": mean(validations), "weights": (off / moved).sqrt().item()}


def pptrain_name(name):
    """Of the parameter that a Hugging Face directory calls `name`."""
    for theirs, ours in (("model.", ""), ("embed_tokens", "embed"), ("lm_head", "head"), ("self_attn", "attn"),
                         ("input_layernorm", "attn_norm"), ("post_attention_layernorm", "mlp_norm"),
                         ("mlp.gate.", "mlp.router."), ("_proj", "")):
        name = name.replace(theirs, ours)
    return name


def sizes_toml(arch):
    sizes = {key: value for key, value in {**SIZES, **CLASSES[arch][2]}.items() if value is not None}
    return f'arch = "{arch}"\n' + "\n".join(f"{key} = {str(value).lower()}" for key, value in sizes.items())


class Oracle(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pptrain_oracle_"))
        self.addCleanup(shutil.rmtree, self.folder)
        write_data(self.folder)

    def check(self, job):
        model = build(job.arch)
        model.save_pretrained(self.folder / "hf")
        data, start = Data(job), saved(model)
        wide = copy.deepcopy(model).double()
        tie = ClosestTie(wide)
        truth = train(job, wide, data)
        clipped = [norm > job.clip for norm in truth.norm]
        self.assertGreater(sum(clipped), 3, f"clipping must act: {truth.norm}")
        self.assertLess(sum(clipped), job.steps - 2, f"and not always: {truth.norm}")
        self.assertLess(truth.loss[-1], truth.loss[0] - 0.2, "the steps must matter")
        self.assertGreater(tie.distance, 3e-5, "float32 may choose other experts: take another seed")

        same(self, run_pptrain(PPTRAIN, self.folder, job, HF), truth, way(start, truth.weights))
        self.as_good_in_bf16(job, model, truth, start)

    def as_good_in_bf16(self, job, model, truth, start):
        plain = errors(train(job, model, Data(job), plain_bf16=True), truth, start)
        job = dataclasses.replace(job, dtype="bf16")
        other = self.folder / "bf16"
        other.mkdir()
        write_data(other)
        model_keys = HF.replace('"hf"', f'"{self.folder / "hf"}"', 1)
        actual = errors(run_pptrain(PPTRAIN, other, job, model_keys), truth, start)
        for what, error in actual.items():
            self.assertLess(error, BF16 * plain[what], f"{what}: {actual}, transformers {plain}")
            self.assertGreater(error, 0.02 * plain[what], f"{what}: is this bf16? {actual}, transformers {plain}")

    def test_llama(self):
        self.check(Job())

    def test_qwen3_on_documents(self):
        self.check(Job(arch="qwen3", seed=11, document_end=DOCUMENT_END, eval_batches=2))

    def test_qwen3_moe(self):
        self.check(Job(arch="qwen3_moe", seed=3, balance=0.02, z=0.003))

    def test_a_seed_decides_initial_weights_and_order(self):
        seen = []
        for seed in (5, 9):
            # A step of nothing, so that the weights are those of the start.
            job = Job(arch="qwen3_moe", seed=seed, steps=1, warmup=1, lr=0.0, eval_interval=0)
            folder = self.folder / str(seed)
            folder.mkdir()
            write_data(folder)
            actual = run_pptrain(PPTRAIN, folder, job, sizes_toml(job.arch))
            for name, weight in actual.weights.items():
                drawn = torch.ones(weight.shape)
                if "norm" not in name:
                    std = SIZES["initializer_range"]
                    drawn = torch.from_numpy(initial_values(pptrain_name(name), weight.shape, seed, std))
                self.assertTrue(torch.allclose(weight, drawn, rtol=2e-7, atol=0), name)
            model = CLASSES[job.arch][0].from_pretrained(folder / "trained", attn_implementation="eager")
            model.config._experts_implementation = "eager"
            expected = train(job, model.double(), Data(job))
            self.assertLess(relative(actual.loss[0], expected.loss[0]), LOSS)
            self.assertLess(relative(actual.norm[0], expected.norm[0]), NORM)
            seen.append(actual)
        self.assertNotEqual(*(run.loss for run in seen))


if __name__ == "__main__":
    unittest.main()
