"""Runs of the program on two ranks against torch.distributed on two ranks: the same job, sharded along the same axis.

    oracle_layouts_test.py PPTRAIN [unittest arguments]

The other side uses its own means: FSDP2, DTensor's tensor parallelism, pipelining's 1F1B, gathered keys and values,
and tokens that travel to their experts and back. It computes in float64.
"""

import dataclasses
import pathlib
import shutil
import sys
import tempfile
import unittest

import torch

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()

from oracle import layouts  # noqa: E402
from oracle.compare import same, way  # noqa: E402
from oracle.job import Job, run_pptrain, write_data  # noqa: E402
from oracle.reference import build, saved  # noqa: E402

torch.set_num_threads(1)
JOB = Job(steps=3, warmup=1, eval_interval=0, seed=4)
DOCUMENT_END = 7


class Layouts(unittest.TestCase):
    def check(self, layout, *layouts_of_pptrain, **changes):
        """Each of layouts_of_pptrain is a list of settings of [distributed]."""
        job = dataclasses.replace(JOB, **changes)
        root = pathlib.Path(tempfile.mkdtemp(prefix="pptrain_oracle_layouts_"))
        self.addCleanup(shutil.rmtree, root)
        model = build(job.arch)
        model.save_pretrained(root / "hf")
        expected = layouts.on_two_ranks(self, layout, job, root)
        self.assertGreater(max(expected.norm), job.clip, "clipping must act")
        keys = f'hf_dir = "{root / "hf"}"\ninit = "hf"'
        for settings in layouts_of_pptrain:
            folder = root / " ".join(settings)
            folder.mkdir()
            write_data(folder)
            with self.subTest(settings):
                actual = run_pptrain(PPTRAIN, folder, job, keys, *(f"distributed.{setting}" for setting in settings))
                same(self, actual, expected, way(saved(model), expected.weights))

    def test_dp_of_documents(self):
        self.check(layouts.data_parallel, ["dp_shard=2"], ["dp_replicate=2"], arch="qwen3", document_end=DOCUMENT_END,
                   data_ranks=2)

    def test_tp(self):
        self.check(layouts.tensor_parallel, ["tp=2"])

    def test_cp_of_documents(self):
        self.check(layouts.context_parallel, ["cp=2", "cp_kind=ring"], ["cp=2", "cp_kind=ulysses"], arch="qwen3",
                   document_end=DOCUMENT_END)

    def test_pp(self):
        self.check(layouts.pipeline_parallel, ["pp=2"], ["pp=2", "pp_schedule=zb_h1"])

    def test_ep_with_router_losses(self):
        self.check(layouts.expert_parallel, ["dp_shard=2", "ep=2"], arch="qwen3_moe", data_ranks=2, balance=0.02, z=0.003)


if __name__ == "__main__":
    unittest.main()
