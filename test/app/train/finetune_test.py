"""configs/finetune.toml on a tiny Hugging Face directory: its first loss is that of transformers on the same tokens.

Usage: finetune_test.py PPTRAIN [unittest arguments]
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()
PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
SOURCE = pathlib.Path(__file__).resolve().parents[3]
DOCUMENTS = 32
DOCUMENT_END = 0


class FineTune(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="pptrain_finetune_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        torch.manual_seed(7)
        config = LlamaConfig(hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
                             num_key_value_heads=2, vocab_size=1024, max_position_embeddings=256,
                             initializer_range=0.1, bos_token_id=None, eos_token_id=DOCUMENT_END)
        cls.model = LlamaForCausalLM(config).eval()
        cls.model.save_pretrained(cls.folder / "hf")
        for file in (SOURCE / "configs/data/tokenizer").iterdir():
            shutil.copy(file, cls.folder / "hf")
        # Paragraphs that fit into a row, as the recipe makes documents of them.
        paragraphs = (SOURCE / "configs/data/tinyshakespeare.txt").read_text().split("\n\n")
        cls.documents = [text for text in paragraphs if 40 < len(text) < 400][:DOCUMENTS]
        (cls.folder / "text.txt").write_text("\n\n".join(cls.documents))
        subprocess.run([PPTRAIN, "tokenize", "--tokenizer", cls.folder / "hf", "--document-separator", "\\n\\n", "--out",
                        cls.folder / "speeches", cls.folder / "text.txt"], check=True, capture_output=True, timeout=600)

    def train(self, run_dir, *settings):
        """The losses of a run of the recipe, in fp32."""
        command = [PPTRAIN, "--config", SOURCE / "configs/finetune.toml"]
        for setting in (f"run.dir={self.folder / run_dir}", f"model.hf_dir={self.folder / 'hf'}", f"data.path={self.folder / 'speeches.bin'}",
                        "train.dtype=fp32", "train.steps=4", "data.val_fraction=0", "eval.interval=0", *settings):
            command += ["--set", setting]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        records = map(json.loads, (self.folder / run_dir / "metrics.jsonl").read_text().splitlines())
        return [record["loss"] for record in records if "loss" in record]

    def loss_of_transformers(self):
        """Of all tokens of each document but the first, and of the token that ends it."""
        tokenizer = AutoTokenizer.from_pretrained(self.folder / "hf")
        total, count = 0.0, 0
        for document in self.documents:
            tokens = torch.tensor(tokenizer(document)["input_ids"] + [DOCUMENT_END])
            with torch.inference_mode():
                logits = self.model(tokens[None, :-1]).logits[0]
            total += torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="sum").item()
            count += len(tokens) - 1
        return total / count

    def test_the_first_loss_is_that_of_transformers(self):
        # All documents in one step, so that their order does not matter.
        losses = self.train("whole", "data.packing=none", "data.lengths=exact", "train.micro_batch_size=4",
                            f"train.grad_accum_steps={DOCUMENTS // 4}", "optimizer.lr=3e-3")
        self.assertAlmostEqual(losses[0], self.loss_of_transformers(), delta=2e-4 * losses[0])
        self.assertLess(losses[-1], losses[0] - 0.2)

    def test_the_recipe_as_it_is(self):
        losses = self.train("packed", "optimizer.lr=3e-3", "train.micro_batch_size=1")
        self.assertLess(losses[-1], losses[0] - 0.2)


if __name__ == "__main__":
    unittest.main()
