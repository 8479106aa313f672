"""Directories as published and as users make them: a start, eval and convert read what transformers reads.

    hf_directory_test.py PPTRAIN [unittest arguments]
"""

import filecmp
import json
import pathlib
import shutil
import sys
import unittest

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import pptrain  # noqa: E402
from pptrain import hf_job, run, sets  # noqa: E402
from published_directories import load, write  # noqa: E402
from published_models import PUBLISHED, VOCAB  # noqa: E402

torch.set_num_threads(1)
SEQ_LEN = 16


class Case(pptrain.Case):
    def setUp(self):
        super().setUp()
        self.hf = self.folder / "hf"
        self.tokens = torch.randint(0, 256, (200,), generator=torch.Generator().manual_seed(3))
        (self.folder / "tokens.bin").write_bytes(self.tokens.to(torch.uint16).numpy().tobytes())

    def pptrain(self, *arguments, code=0):
        return run([PPTRAIN, *arguments], self.folder, code=code)

    def convert(self, source, target, *options, code=0):
        return self.pptrain("convert", "--from", source, "--to", target, *options, code=code)

    def job(self, hf=None):
        job = self.folder / "job.toml"
        job.write_text(hf_job(self.folder, hf or self.hf, data={"val_fraction": 0.5}))
        return job

    def eval(self, *arguments):
        done = self.pptrain("eval", "--config", self.job(), "--batches", 0, "--json", *arguments)
        return json.loads(done.stdout)["loss"], done.stderr

    def loss_of(self, model):
        """transformers' loss on eval's samples: SEQ_LEN tokens each, the last one shorter."""
        nats, count, held = 0.0, 0, self.tokens[100:].tolist()
        for first in range(0, len(held) - 1, SEQ_LEN):
            row = torch.tensor([held[first:first + SEQ_LEN + 1]])
            with torch.inference_mode():
                logits = model(row[:, :-1]).logits[0]
            nats += torch.nn.functional.cross_entropy(logits, row[0, 1:], reduction="sum").item()
            count += row.shape[1] - 1
        return nats / count

    def check_eval(self, model):
        """Compares eval of the directory with transformers; returns eval's log."""
        self.loss, log = self.eval()
        self.assertLess(abs(self.loss - self.loss_of(model)), 1e-5)
        return log

    def change(self, **changes):
        """Replaces tensors of the directory; None removes one."""
        path = self.hf / "model.safetensors"
        tensors = {key.replace("/", "."): value for key, value in changes.items()}
        kept = {**load_file(path), **tensors}
        save_file({key: value for key, value in kept.items() if value is not None}, path, {"format": "pt"})

    def round_trip(self):
        """Converts to a checkpoint and back. The checkpoint's loss has the bits of self.loss (see check_eval)."""
        shutil.rmtree(self.folder / "checkpoint", ignore_errors=True)
        shutil.rmtree(self.folder / "back", ignore_errors=True)
        lines = self.convert(self.hf, self.folder / "checkpoint").stderr
        self.assertEqual(self.eval("--checkpoint", self.folder / "checkpoint")[0], self.loss)
        self.convert(self.folder / "checkpoint", self.folder / "back")
        names = sorted(path.name for path in self.hf.iterdir())
        self.assertEqual(sorted(path.name for path in (self.folder / "back").iterdir()), names)
        for name in names:
            self.assertTrue(filecmp.cmp(self.hf / name, self.folder / "back" / name, shallow=False), name)
        return lines


class Published(Case):
    def test_directories_are_read_as_transformers_reads_them(self):
        for i, name in enumerate(PUBLISHED):
            with self.subTest(model=name):
                shutil.rmtree(self.hf, ignore_errors=True)
                model = write(self.hf, name)
                self.assertEqual(self.check_eval(model).count("warning"), 0)
                if i % 3 == 0:  # the families' tests do it for every family
                    self.round_trip()

    def test_layers_for_multi_token_prediction_are_left_out(self):
        model = write(self.hf, "DeepSeek-V3", mtp=True)
        self.assertIn("tensors (model.layers.5.eh_proj.weight, ", self.check_eval(model))
        self.assertIn("carried along", self.round_trip())
        self.pptrain("check", "--config", self.job())
        self.pptrain("--config", self.job(), *sets("distributed.pp=2"))
        self.convert(self.folder / "run", self.folder / "trained")
        trained = load(self.folder / "trained")
        self.assertEqual(trained.config.num_nextn_predict_layers, 0)
        self.assertLess(abs(self.eval("--checkpoint", self.folder / "run")[0] - self.loss_of(trained)), 1e-5)
        # Refused if config.json does not count these layers.
        shutil.rmtree(self.folder / "run")
        config = self.hf / "config.json"
        config.write_text(config.read_text().replace('"num_nextn_predict_layers": 1', '"num_nextn_predict_layers": 0'))
        for command in (["eval", "--config", self.job()], ["convert", "--from", self.hf, "--to", "other"]):
            self.assertIn("is of layer 5, but this model has 5", self.pptrain(*command, code=1).stderr)


class Heads(Case):
    def test_a_head_of_its_own_though_config_json_says_tied(self):
        """Merging adapters of the head gives such a directory."""
        tied = write(self.hf, "Llama-3.2-1B-Instruct")
        head = load_file(self.hf / "model.safetensors")["model.embed_tokens.weight"].float()
        self.change(**{"lm_head/weight": (1.2 * head + 0.01).bfloat16()})
        model = load(self.hf)
        self.assertFalse(torch.equal(model.lm_head.weight, model.model.embed_tokens.weight), "transformers does not tie them")
        self.assertGreater(abs(self.loss_of(model) - self.loss_of(tied)), 0.01)
        warning = "lm_head.weight differs from model.embed_tokens.weight"
        self.assertIn(warning, self.check_eval(model))
        self.assertIn(warning, self.round_trip())
        self.assertIn(warning, self.pptrain("check", "--config", self.job()).stdout)
        self.assertIn(warning, self.pptrain("--config", self.job()).stdout)
        self.convert(self.folder / "run", self.folder / "trained")
        trained = load(self.folder / "trained")
        self.assertFalse(trained.config.tie_word_embeddings)
        self.assertLess(abs(self.eval("--checkpoint", self.folder / "run")[0] - self.loss_of(trained)), 1e-5)
        for embedding, tensor in (("embed", model.model.embed_tokens), ("head", model.lm_head)):
            moved = trained.lm_head if embedding == "head" else trained.model.embed_tokens
            self.assertLess((moved.weight - tensor.weight).abs().max().item(), 0.1, "each begins as it was")
        refused = self.pptrain("--config", self.job(), *sets("model.tie_word_embeddings=true"), code=2).stderr
        self.assertIn("model.tie_word_embeddings", refused)

    def test_a_tied_head_may_be_there_twice_or_stand_for_the_embedding(self):
        model = write(self.hf, "Qwen3-0.6B")
        embedding = load_file(self.hf / "model.safetensors")["model.embed_tokens.weight"]
        self.change(**{"lm_head/weight": embedding.clone()})
        self.assertNotIn("warning", self.check_eval(model))
        self.round_trip()
        self.change(**{"model/embed_tokens/weight": None})
        self.assertNotIn("warning", self.check_eval(load(self.hf)))
        self.round_trip()


class Names(Case):
    def test_a_base_model(self):
        for name in ("Llama-3.2-1B-Instruct", "gpt2"):
            shutil.rmtree(self.hf, ignore_errors=True)
            model = write(self.folder / "whole", name)
            AutoModel.from_pretrained(self.folder / "whole").save_pretrained(self.hf)
            self.assertIn("wte.weight" if name == "gpt2" else "embed_tokens.weight", load_file(self.hf / "model.safetensors"))
            self.check_eval(model)
            self.round_trip()

    def test_the_text_model_of_a_model_with_images(self):
        model = write(self.hf, "gemma-3-1b")
        path = self.hf / "model.safetensors"
        tensors = {f"language_model.{key}": value for key, value in load_file(path).items()}
        tensors["vision_tower.patch_embedding.weight"] = torch.ones(3)
        save_file(tensors, path, {"format": "pt"})
        self.assertIn("1 tensor (vision_tower.patch_embedding.weight) that this model does not have", self.check_eval(model))
        self.round_trip()


class Refusals(Case):
    def refusals(self, all_commands):
        """The output of commands that read the directory."""
        job = self.job()
        commands = (["check", "--config", job], ["--config", job], ["eval", "--config", job],
                    ["generate", "--config", job, "--prompt-ids", "1,2"], ["convert", "--from", self.hf, "--to", self.folder / "out"])
        for command in commands if all_commands else commands[::4]:
            done = self.pptrain(*command, code=None)
            self.assertIn(done.returncode, (1, 2), command)
            yield done.stderr

    def test_every_reader_refuses_the_same(self):
        write(self.folder / "sound", "Mistral-7B-v0.1")
        pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 4943162336\n"
        cases = {
            "has no tensor 'lm_head.weight'": {"lm_head/weight": None},
            "model.layers.1.mlp.up_proj.bias has no place": {"model/layers/1/mlp/up_proj/bias": torch.zeros(4)},
            "model.layers.3.mlp.up_proj.weight is of layer 3": {"model/layers/3/mlp/up_proj/weight": torch.zeros(4)},
            "q_proj.weight_scale_inv is of quantized weights":
                {"model/layers/0/self_attn/q_proj/weight_scale_inv": torch.ones(2)},
            "is stored as F8_E4M3": {"lm_head/weight": torch.zeros(VOCAB, 128).to(torch.float8_e4m3fn)},
            "is stored as F64": {"lm_head/weight": torch.zeros(VOCAB, 128).double()},
            "is a git-LFS pointer": pointer,
            "1 of 2 shards are missing: model-00002-of-00002.safetensors": None,
        }
        for i, (message, changes) in enumerate(cases.items()):
            with self.subTest(message=message):
                shutil.rmtree(self.hf, ignore_errors=True)
                shutil.copytree(self.folder / "sound", self.hf)
                weights = self.hf / "model.safetensors"
                if isinstance(changes, dict):
                    self.change(**changes)
                elif changes:
                    weights.write_text(changes)
                else:
                    names = dict.fromkeys(load_file(weights), "model-00001-of-00002.safetensors")
                    weights.rename(self.hf / "model-00001-of-00002.safetensors")
                    index = {"weight_map": {**names, "lm_head.weight": "model-00002-of-00002.safetensors"}}
                    (self.hf / "model.safetensors.index.json").write_text(json.dumps(index))
                for refusal in self.refusals(all_commands=i == 0):
                    self.assertIn(message, refusal)
                self.assertFalse((self.folder / "out").exists())


if __name__ == "__main__":
    unittest.main()
