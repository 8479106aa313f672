"""Runs of the program against transformers and torch.optim: the same job, computed there only from the documentation.

    oracle_test.py PPTRAIN [unittest arguments]

The reference computes in float64. Every loss, norm, validation and weight of a float32 run must agree within rounding.
The errors of a bf16 run are compared with the errors of transformers' model in bf16. `eps` is large, since with a small
one a gradient that is zero up to rounding would become a whole step.
"""

import copy
import dataclasses
import math
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
from oracle.fp8 import multiply_in_fp8  # noqa: E402
from oracle.reference import CLASSES, SIZES, PlainBf16, build, saved, train  # noqa: E402
from bounds import assert_within, exact, refuse_near_ties, unrecorded  # noqa: E402
from transformers_models import ClosestTie  # noqa: E402

torch.set_num_threads(1)
DOCUMENT_END = 7
# How much larger than transformers' errors the errors in bf16 may be, relative to the former. For all weights together:
# a second rounding of everything would add sqrt(2) - 1. For a few figures, which are partly chance, more.
BF16_FIGURES, BF16_WEIGHTS = 1.5, 0.4


def errors(result, truth, start):
    """The errors of all losses, of the norms, and of the weights relative to their change."""
    validations = [(result.validation[step][name][0], loss)
                   for step, sources in truth.validation.items() for name, (loss, _) in sources.items()]
    pairs = {"losses": [*zip(result.loss, truth.loss), *validations], "norms": [*zip(result.norm, truth.norm)]}
    found = {what: math.hypot(*(relative(*pair) for pair in both)) / math.sqrt(len(both)) for what, both in pairs.items()}
    off = math.hypot(*((result.weights[name].double() - truth.weights[name]).norm() for name in start))
    return {**found, "weights": off / math.hypot(*((truth.weights[name] - start[name]).norm() for name in start))}


def pptrain_name(name):
    """pptrain's name of the parameter that a Hugging Face directory calls `name`."""
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

    def run_in(self, name, job, model_keys, *settings):
        folder = self.folder / name
        folder.mkdir()
        write_data(folder)
        return run_pptrain(PPTRAIN, folder, job, model_keys, *settings)

    def prepare(self, job, sizes=SIZES):
        """The model, its weights, and the keys of a job that starts from it."""
        model = build(job.arch, sizes)
        model.save_pretrained(self.folder / "hf")
        return model, saved(model), f'hf_dir = "{self.folder / "hf"}"\ninit = "hf"'

    def check(self, job):
        model, start, keys = self.prepare(job)
        wide = copy.deepcopy(model).double()
        tie = ClosestTie(wide)
        truth = train(job, wide, Data(job))
        clipped = sum(norm > job.clip for norm in truth.norm)
        self.assertGreater(clipped, 0, f"clipping must act: {truth.norm}")
        self.assertLess(clipped, job.steps - 2, f"and not always: {truth.norm}")
        self.assertLess(truth.loss[-1], truth.loss[0] - 0.2, "the steps must matter")
        refuse_near_ties(self, tie.distance, 3e-5)
        same(self, self.run_in("fp32", job, keys), truth, way(start, truth.weights))

        # A lower rate, so that errors add up but do not grow exponentially; the result of growth would be chance.
        job = dataclasses.replace(job, lr=1e-3)
        truth = train(job, copy.deepcopy(model).double(), Data(job))
        plain = errors(train(job, model, Data(job), PlainBf16(model)), truth, start)
        self.compare_errors(errors(self.run_in("bf16", dataclasses.replace(job, dtype="bf16"), keys), truth, start), plain)

    def compare_errors(self, actual, plain):
        told = f"{actual}, transformers {plain}"
        self.assertGreater(actual["weights"], 0.1 * plain["weights"], f"is this bf16? {told}")
        for what, bound in (("losses", BF16_FIGURES), ("norms", BF16_FIGURES), ("weights", BF16_WEIGHTS)):
            assert_within(self, max(actual[what] / plain[what] - 1, 0), bound, told)

    def test_llama(self):
        self.check(Job())

    def test_qwen3_on_documents(self):
        self.check(Job(arch="qwen3", seed=11, document_end=DOCUMENT_END, eval_batches=2))

    def test_qwen3_moe(self):
        self.check(Job(arch="qwen3_moe", seed=5, balance=0.02, z=0.003))

    def test_llama_with_z_loss_and_steps_of_several_sizes(self):
        self.check(Job(seed=7, z_loss=0.02, more_microbatches=((4, 5), (9, 2))))

    def test_llama_in_fp8(self):
        job = Job(lr=1e-3)
        model, start, keys = self.prepare(job, {**SIZES, "intermediate_size": 64, "head_dim": 16})
        truth = train(job, multiply_in_fp8(copy.deepcopy(model).double()), Data(job))
        without = errors(train(job, copy.deepcopy(model).double(), Data(job)), truth, start)
        plain = errors(train(job, model, Data(job), PlainBf16(model, multiply_in_fp8)), truth, start)
        actual = errors(self.run_in("fp8", dataclasses.replace(job, dtype="bf16"), keys, "train.fp8=rowwise"), truth, start)
        self.compare_errors(actual, plain)
        # A value near the middle between two numbers of FP8 goes to one or the other by an earlier rounding, so runs in FP8
        # come no nearer to each other than this; without FP8 they are farther off.
        halfway = (plain["weights"] + without["weights"]) / 2
        self.assertLess(actual["weights"], halfway, f"is this FP8? {actual}, transformers {plain}, without FP8 {without}")

    @exact
    def test_what_a_setting_does_is_seen(self):
        job = Job()
        model, start, keys = self.prepare(job)
        truth = train(job, model.double(), Data(job))
        settings = ("lr_schedule.name=constant", "lr_schedule.warmup_steps=1", "train.grad_clip=0", "run.seed=0",
                    "optimizer.betas=0.8,0.95", "optimizer.eps=1e-8")
        for number, setting in enumerate(settings):
            other = self.run_in(str(number), job, keys, setting)
            with self.subTest(setting), unrecorded(), self.assertRaises(AssertionError):
                same(self, other, truth, way(start, truth.weights))

    def test_a_seed_decides_initial_weights_and_order(self):
        seen = []
        for seed in (5, 9):
            # The step changes nothing, so the weights are the initial ones.
            job = Job(arch="qwen3_moe", seed=seed, steps=1, warmup=1, lr=0.0, eval_interval=0)
            actual = self.run_in(str(seed), job, sizes_toml(job.arch))
            for name, weight in actual.weights.items():
                drawn = torch.ones(weight.shape)
                if "norm" not in name:
                    std = SIZES["initializer_range"]
                    drawn = torch.from_numpy(initial_values(pptrain_name(name), weight.shape, seed, std))
                assert_within(self, ((weight.double() - drawn.double()) / drawn.double()).abs().max(), 2e-7, name)
            model = CLASSES[job.arch][0].from_pretrained(self.folder / str(seed) / "trained", attn_implementation="eager")
            model.config._experts_implementation = "eager"
            expected = train(job, model.double(), Data(job))
            assert_within(self, relative(actual.loss[0], expected.loss[0]), LOSS)
            assert_within(self, relative(actual.norm[0], expected.norm[0]), NORM)
            seen.append(actual)
        self.assertNotEqual(*(run.loss for run in seen))


if __name__ == "__main__":
    unittest.main()
