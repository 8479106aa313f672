"""configs/finetune.toml on a tiny Hugging Face directory: its first loss equals transformers' loss on the same tokens.

Usage: finetune_test.py PPTRAIN [unittest arguments]
"""

import json
import os
import pathlib
import shutil
import sys
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from bounds import assert_within, seed  # noqa: E402
from pptrain import SOURCE, records, run, sets, temporary_folder  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
DOCUMENTS = 32


class FineTune(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = temporary_folder(cls.addClassCleanup)
        torch.manual_seed(seed(7))
        config = LlamaConfig(hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
                             num_key_value_heads=2, vocab_size=1024, max_position_embeddings=256,
                             initializer_range=0.1, bos_token_id=None, eos_token_id=0)
        cls.model = LlamaForCausalLM(config).eval()
        cls.model.save_pretrained(cls.folder / "hf")
        for file in (SOURCE / "configs/data/tokenizer").iterdir():
            shutil.copy(file, cls.folder / "hf")
        lines = (SOURCE / "configs/data/speeches.jsonl").read_text().splitlines()[:DOCUMENTS]
        cls.documents = [json.loads(line) for line in lines]
        (cls.folder / "speeches.jsonl").write_text("\n".join(lines) + "\n")

    def train(self, run_dir, *settings):
        """The losses of a run of the recipe, in fp32."""
        small = sets(f"run.dir={self.folder / run_dir}", f"model.hf_dir={self.folder / 'hf'}",
                     f"data.path={self.folder / 'speeches.jsonl'}", "train.dtype=fp32", "train.steps=4",
                     "data.val_fraction=0", "eval.interval=0", "metrics.peak_tflops=1", *settings)
        run([PPTRAIN, "--config", SOURCE / "configs/finetune.toml", *small], self.folder, timeout=600)
        return [record["loss"] for record in records(self.folder / run_dir) if "loss" in record]

    def loss_of_transformers(self):
        """transformers' loss on the completions and their end tokens, given all tokens before them."""
        tokenizer = AutoTokenizer.from_pretrained(self.folder / "hf")
        total, count = 0.0, 0
        for document in self.documents:
            prompt, completion = (tokenizer(document[key])["input_ids"] for key in ("prompt", "completion"))
            tokens = torch.tensor(prompt + completion + [tokenizer.eos_token_id])
            with torch.inference_mode():
                logits = self.model(tokens[None, :-1]).logits[0, len(prompt) - 1:]
            total += torch.nn.functional.cross_entropy(logits, tokens[len(prompt):], reduction="sum").item()
            count += len(tokens) - len(prompt)
        return total / count

    def test_the_first_loss_is_that_of_transformers(self):
        # All documents in one step, so that their order does not matter.
        losses = self.train("whole", "data.packing=none", "data.lengths=exact", "train.micro_batch_size=4",
                            f"train.grad_accum_steps={DOCUMENTS // 4}", "optimizer.lr=3e-3")
        assert_within(self, abs(losses[0] / self.loss_of_transformers() - 1), 2e-4)
        self.assertLess(losses[-1], losses[0] - 0.2)

    def test_the_recipe_as_it_is(self):
        losses = self.train("packed", "optimizer.lr=3e-3", "train.micro_batch_size=1")
        self.assertLess(losses[-1], losses[0] - 0.2)


if __name__ == "__main__":
    unittest.main()
