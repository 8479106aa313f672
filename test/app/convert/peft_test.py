"""Exported adapters compute in peft what the merged model computes, for every family.

    peft_test.py PPTRAIN [unittest arguments]

PPTRAIN_PEFT names a folder with another version of peft (pip install --no-deps --target FOLDER peft==0.18.0).
"""

import os
import pathlib
import shutil
import sys
import unittest

if os.environ.get("PPTRAIN_PEFT"):
    sys.path.insert(0, os.environ["PPTRAIN_PEFT"])

import torch
from peft import PeftModel

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import pptrain  # noqa: E402
from pptrain import hf_job, run, sets  # noqa: E402
from published_directories import load, write  # noqa: E402
from published_models import PUBLISHED  # noqa: E402

torch.set_num_threads(1)
SECTIONS = {"train": {"steps": 3}, "optimizer": {"lr": 0.05}, "lr_schedule": {"warmup_steps": 0}, "lora": {"rank": 4, "alpha": 6}}
# Families whose directories have q, k and v in one tensor.
MERGED_ALONE = ("Phi-3.5-mini-instruct", "Phi-4-mini-instruct", "gpt2", "pythia-160m")
# Families with an MLP outside the experts.
DENSE_AMONG_EXPERTS = {"Qwen3-30B-A3B": {"mlp_only_layers": [1]}, "Qwen1.5-MoE-A2.7B": {"mlp_only_layers": [1]}}


class Peft(pptrain.Case):
    def convert(self, target, *options, code=0):
        return run([PPTRAIN, "convert", "--from", "run", "--to", target, *options], self.folder, code=code)

    def train(self, name, *settings):
        for part in ("run", "hf", "adapter", "merged"):
            shutil.rmtree(self.folder / part, ignore_errors=True)
        base = write(self.folder / "hf", name, dtype=torch.float32, **DENSE_AMONG_EXPERTS.get(name, {}))
        tokens = torch.randint(0, 256, (300,), generator=torch.Generator().manual_seed(3))
        (self.folder / "tokens.bin").write_bytes(tokens.to(torch.uint16).numpy().tobytes())
        (self.folder / "job.toml").write_text(hf_job(self.folder, self.folder / "hf", **SECTIONS))
        return base, run([PPTRAIN, "--config", "job.toml", *sets(*settings)], self.folder).stdout

    def check(self, base):
        self.convert("adapter")
        self.convert("merged", "--merge")
        ids = torch.arange(24)[None]
        with torch.inference_mode():
            before = base(input_ids=ids).logits
            merged = load(self.folder / "merged")(input_ids=ids).logits
            adapted = PeftModel.from_pretrained(base, self.folder / "adapter").eval()(input_ids=ids).logits
        self.assertGreater((merged - before).abs().max().item(), 0.3, "the adapters matter")
        self.assertLess((adapted - merged).abs().max().item(), 1e-5 * merged.abs().max().item())

    def test_every_family(self):
        for name in PUBLISHED:
            with self.subTest(model=name):
                base, log = self.train(name)
                self.assertEqual("peft cannot adapt" in log, name in MERGED_ALONE)
                if name in MERGED_ALONE:
                    self.assertIn("--merge", self.convert("adapter", code=2).stderr)
                    checked = run([PPTRAIN, "check", "--config", "job.toml"], self.folder, code=None).stdout
                    self.assertIn("peft cannot adapt", checked)
                else:
                    self.check(base)

    def test_dense_mlps_alone_and_some_projections(self):
        for name, targets in (("DeepSeek-V2-Lite", '["*.mlp.*"]'), ("Qwen3-30B-A3B", '["*.attn.v", "*.mlp.up"]'),
                              ("DeepSeek-V3", '["layers.1.mlp.down", "layers.4.mlp.shared.gate", "layers.2.attn.o"]')):
            with self.subTest(model=name):
                base, _ = self.train(name, f"lora.targets={targets}", "optimizer.lr=0.3")
                self.check(base)


if __name__ == "__main__":
    unittest.main()
