"""scripts/text_to_text.sh from end to end, and its exported model in Hugging Face's transformers.

Usage: text_to_text_test.py PPTRAIN [unittest arguments]
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from pptrain import environment  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
SOURCE = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = SOURCE / "scripts/text_to_text.sh"
SEQ_LEN, STEPS = 128, 12
# In fp32, so that losses can be compared closely.
SETTINGS = [f"train.steps={STEPS}", f"train.seq_len={SEQ_LEN}", "train.grad_accum_steps=2", "train.dtype=fp32",
            "lr_schedule.warmup_steps=2", "eval.batches=0"]


def run_script(*arguments, cwd=None, pptrain="pptrain"):
    return subprocess.run([SCRIPT, *map(str, arguments)], capture_output=True, text=True, timeout=600, cwd=cwd,
                          env=environment(PPTRAIN=pptrain, PATH=f"{PPTRAIN.parent}:{os.environ['PATH']}"))


class TextToText(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="pptrain_text_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        text = (SOURCE / "configs/data/tinyshakespeare.txt").read_text()[:60000]
        (cls.folder / "my text.txt").write_text(text)
        cls.out = cls.folder / "out, of \"1\""
        arguments = ["--out", cls.out.name, "--prompt", "First Citizen:"]
        for setting in SETTINGS:
            arguments += ["--set", setting]
        cls.done = run_script(*arguments, "my text.txt", cwd=cls.folder)
        if cls.done.returncode:
            raise AssertionError(cls.done.stdout + cls.done.stderr)
        cls.text = text

    def test_what_it_leaves_is_what_it_says(self):
        self.assertEqual(re.findall(r"^== (.*)", self.done.stderr, re.M),
                         ["Tokens of the text", "Training", "Loss on text that was held out", "Text that goes on from a prompt", "Export"])
        self.assertIn(f"In {self.out.resolve()}:", self.done.stdout)
        for name in re.findall(r"^  (\S+?),? +(?:\S+ +)?[ta-z]", self.done.stdout.split("In ", 1)[1], re.M)[:3]:
            self.assertTrue((self.out / name).exists(), name)
        steps = [json.loads(line) for line in (self.out / "model/metrics.jsonl").read_text().splitlines()]
        losses = [step["loss"] for step in steps if "loss" in step]
        self.assertEqual(len(losses), STEPS)
        self.assertLess(losses[-1], losses[0] - 0.3)

    def test_tokens_are_those_of_transformers(self):
        tokenizer = AutoTokenizer.from_pretrained(self.out / "huggingface", model_max_length=10**6)
        expected = tokenizer(self.text)["input_ids"] + [tokenizer.eos_token_id]
        self.assertEqual(numpy.fromfile(self.out / "tokens.bin", numpy.uint16).tolist(), expected)

    def test_the_exported_model_has_the_loss_that_was_said(self):
        model = AutoModelForCausalLM.from_pretrained(self.out / "huggingface", dtype=torch.float32).eval()
        tokens = torch.from_numpy(numpy.fromfile(self.out / "tokens.bin", numpy.uint16).astype(numpy.int64))
        held_out = tokens[len(tokens) - int(0.1 * len(tokens)):]
        total = 0.0
        with torch.inference_mode():
            for begin in range(0, len(held_out) - 1, SEQ_LEN):
                row = held_out[begin:begin + SEQ_LEN + 1]
                logits = model(row[None, :-1]).logits[0]
                total += torch.nn.functional.cross_entropy(logits, row[1:], reduction="sum").item()
        said = re.search(r"^loss +([\d.]+) nats per token\n(?:.*\n)*?tokens +(\d+)", self.done.stdout, re.M)
        self.assertEqual(len(held_out) - 1, int(said[2]))
        self.assertAlmostEqual(total / (len(held_out) - 1), float(said[1]), delta=2e-4)

    def test_the_exported_model_generates(self):
        model = AutoModelForCausalLM.from_pretrained(self.out / "huggingface")
        tokenizer = AutoTokenizer.from_pretrained(self.out / "huggingface")
        prompt = tokenizer("First Citizen:", return_tensors="pt")
        tokens = model.generate(**prompt, max_new_tokens=20, do_sample=False)
        self.assertEqual(tokens.shape[1], prompt.input_ids.shape[1] + 20)
        said = self.done.stdout.split("time ", 1)[1].split("\nIn ", 1)[0]  # by eval, generate and convert
        generated = said[said.index("\n"):said.index(str(self.out / "huggingface"))]
        self.assertGreater(len(generated), 200)

    def test_wrong_arguments(self):
        for arguments in (["--no-such"], ["--set"], ["--out"]):
            done = run_script(*arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("--help", done.stderr)
        for setting in ("run.dir=elsewhere", "run.dir = elsewhere"):
            done = run_script("--set", setting)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(f"--set {setting}: use --out", done.stderr)
        for wrong in ("no-such-program", self.folder):
            done = run_script("--out", self.folder / "refused", pptrain=wrong)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(f"PPTRAIN={wrong}: there is no such program", done.stderr)
            self.assertFalse((self.folder / "refused").exists())
        self.assertIn("text_to_text.sh [--out DIR]", run_script("--help").stdout)


if __name__ == "__main__":
    unittest.main()
