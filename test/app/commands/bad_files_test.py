"""What other people's machines do to a run: a wrong file in a file's place, truncated files, other files on another host,
limits, launcher variables that make no sense. Each run ends at once, with an exit code and a message.

Usage: bad_files_test.py PPTRAIN [unittest arguments]
"""

import array
import json
import os
import pathlib
import re
import resource
import struct
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from pptrain import Case, environment, job, run, sets, start, start_ranks, wait_for_steps  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()

JOB = job(run={"dir": "run"}, train={"steps": 2}, data={"path": "data.txt"})


class Accidents(Case):
    def setUp(self):
        super().setUp()
        self.write("job.toml", JOB)
        self.write("data.txt", "All happy families are alike. " * 100)

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def start(self, *arguments, settings=(), cwd=None, limits=None, **variables):
        def limit():
            for kind, value in (limits or {}).items():
                resource.setrlimit(kind, (value, value))

        return start([PPTRAIN, *arguments, *sets(*settings)], cwd or self.folder, env=environment(**variables), preexec_fn=limit)

    def finish(self, process, code, timeout=60):
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            self.fail(f"{process.args} did not end: {process.communicate()}")
        return self.check_end(process.args, process.returncode, out, err, code)

    def check_end(self, command, returned, out, err, code):
        self.assertEqual(returned, code, f"{command}\n{out}\n{err}")
        for frame in ("terminate called", "frame #", "Exception raised from"):
            self.assertNotIn(frame, out + err)
        return out, err

    def ended(self, *arguments, code=0, settings=(), cwd=None, **variables):
        """Standard output and error of a command that must end with `code`."""
        done = run([PPTRAIN, *arguments, *sets(*settings)], cwd or self.folder, code=None, timeout=60, env=environment(**variables))
        return self.check_end(done.args, done.returncode, done.stdout, done.stderr, code)

    def refused(self, *arguments, code=2, expect=(), limits=None, **options):
        """Standard error of a command; checks that it fails with this code and prints all of `expect`."""
        if limits:
            error = self.finish(self.start(*arguments, limits=limits, **options), code)[1]
        else:
            error = self.ended(*arguments, code=code, **options)[1]
        for text in [expect] if isinstance(expect, str) else expect:
            self.assertIn(text, error)
        return error

    # --- launchers' variables ----------------------------------------------------------------------------------------

    def test_variables_that_make_no_sense(self):
        world = {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
        cases = [
            ({"RANK": 0, "WORLD_SIZE": 2, "MASTER_PORT": 70000}, "MASTER_PORT"),
            (world | {"MASTER_PORT": 70000}, "MASTER_PORT"),
            (world | {"RANK": "x"}, "RANK"),
            (world | {"RANK": 2}, "RANK = 2"),
            (world | {"WORLD_SIZE": "two"}, "WORLD_SIZE"),
            ({"RANK": 0, "WORLD_SIZE": 2}, "MASTER_ADDR"),
            ({"OMPI_COMM_WORLD_RANK": 3, "OMPI_COMM_WORLD_SIZE": 2}, "OMPI_COMM_WORLD_RANK = 3"),
            ({"OMPI_COMM_WORLD_RANK": 0, "OMPI_COMM_WORLD_SIZE": ""}, "OMPI_COMM_WORLD_SIZE"),
            ({"PMI_RANK": -1, "PMI_SIZE": 2}, "PMI_RANK"),
            ({"SLURM_STEP_ID": 0, "SLURM_PROCID": 9, "SLURM_NTASKS": 2}, "SLURM_PROCID = 9"),
            ({"SLURM_STEP_ID": 0, "SLURM_PROCID": 0, "SLURM_NTASKS": 2, "SLURM_STEP_NODELIST": "a[1-"}, "a[1-"),
        ]
        for variables, named in cases:
            with self.subTest(variables):
                self.refused("--config", "job.toml", expect=["environment variable" if "a[" not in named else "Slurm", named],
                             **variables)

    # --- a wrong file in a file's place ------------------------------------------------------------------------------

    def test_pipes_and_devices_are_not_waited_for(self):
        os.mkfifo(self.folder / "pipe")
        (self.folder / "hf").mkdir()
        os.mkfifo(self.folder / "hf/config.json")
        step = self.folder / "checkpoints/step_1"
        step.mkdir(parents=True)
        os.mkfifo(step / "manifest.json")
        data = ["check", "--config", "job.toml", "--set"]
        cases = {
            "job": (["check", "--config", "pipe"], 2, "is a pipe; expected a job file"),
            "device": (["check", "--config", "/dev/zero"], 2, "is a device; expected a job file"),
            "data": ([*data, 'data.path="pipe"'], 2, '"pipe" is a pipe'),
            "data device": ([*data, 'data.path="/dev/zero"'], 2, '"/dev/zero" is a device'),
            "validation": ([*data, 'data.val_path="pipe"'], 2, "is a pipe"),
            "hf": ([*data, 'model.hf_dir="hf"'], 2, "config.json' is a pipe"),
            "schedule": ([*data, "distributed.pp_schedule=pipe.csv"], 2, "is a pipe"),
            "trace": (["plan", "--config", "job.toml", "--profile", "pipe.json"], 2, "is a pipe"),
        }
        os.mkfifo(self.folder / "pipe.csv")
        os.mkfifo(self.folder / "pipe.json")
        for name, (arguments, code, expected) in cases.items():
            with self.subTest(name):
                self.refused(*arguments, code=code, expect=expected)
        out, _ = self.ended("verify", "checkpoints", code=1)
        self.assertIn("is a pipe", out)

    def test_what_is_in_the_way_of_output_stays_what_it_is(self):
        run_dir, pipe, victim = self.folder / "run", self.folder / "pipe", self.write("victim", "kept")
        self.ended("--config", "job.toml")
        os.mkfifo(pipe)
        plan = ["plan", "--config", "job.toml", "--costs", "modelled", "--format", "json"]
        for command in ([*plan, "-o", "pipe"], ["report", "run", "-o", "pipe"]):
            with self.subTest(command[0]):
                reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
                self.addCleanup(os.close, reader)
                process = self.start(*command)
                got = b""
                while process.poll() is None or not got:
                    try:
                        got += os.read(reader, 1 << 16)
                    except BlockingIOError:
                        pass
                    time.sleep(0.01)
                self.finish(process, 0)
                self.assertGreater(len(got), 100)
                self.assertTrue(pipe.is_fifo())
        (run_dir / "lock").unlink(missing_ok=True)
        (run_dir / "lock").symlink_to(victim)
        self.refused("--config", "job.toml", "--set", "train.steps=3", code=1, expect="lock")
        self.assertEqual(victim.read_text(), "kept")
        (run_dir / "lock").unlink()
        (run_dir / "job.toml").unlink()
        os.mkfifo(run_dir / "job.toml")
        self.refused("--config", "job.toml", "--set", "train.steps=3", code=1, expect="is a pipe")

    def test_no_text_from_outside_acts_on_a_terminal(self):
        name = 'run.dir="run\\u001b[2J\\u009b"'
        job = ["--config", "job.toml", "--set", name]
        run = "run\x1b[2J\x9b"
        outputs = [self.ended(*job)]
        outputs.append(self.ended("eval", *job, "--set", "data.val_fraction=0.2"))
        outputs.append(self.ended("verify", f"{run}/checkpoints"))
        outputs.append(self.ended("convert", "--from", run, "--to", "out"))
        outputs.append(self.ended(*job, "--set", "model.hidden_size=64", code=2))
        outputs += self.two_ranks(*[[*job, "--set", "model.hidden_size=64"]] * 2)
        for i, texts in enumerate(outputs):
            with self.subTest(i):
                self.assertNotRegex("".join(texts), r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
        self.assertIn("run?[2J?", outputs[0][0] + outputs[0][1])
        self.assertIn("run?[2J?", outputs[1][0])
        self.assertIn("run?[2J?", outputs[4][1])
        self.assertIn("run?[2J?", outputs[5][1])

    def test_a_pipe_for_a_file_of_weights(self):
        (self.folder / "hf").mkdir()
        self.write("hf/config.json", json.dumps({"model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
                                                 "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 256,
                                                 "rms_norm_eps": 1e-6}))
        self.write("job.toml", re.sub(r"\[model\][^\[]*", '[model]\nhf_dir = "hf"\ninit = "hf"\n', JOB))
        self.refused("check", "--config", "job.toml", expect="no model*.safetensors")
        os.mkfifo(self.folder / "hf/model.safetensors")
        self.refused("check", "--config", "job.toml", expect="is a pipe")
        os.remove(self.folder / "hf/model.safetensors")
        header = json.dumps({"model.norm.weight": {"dtype": "F32", "shape": [32], "data_offsets": [0, 128]}}).encode()
        self.write("hf/model.safetensors", struct.pack("<Q", len(header)) + header + bytes(128))
        self.refused("check", "--config", "job.toml", expect=["job.toml:2:1", "has no tensor 'model.embed_tokens.weight'"])

    def test_weights_of_tokens_on_bytes(self):
        (self.folder / "hf").mkdir()
        self.write("hf/config.json", json.dumps({"model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
                                                 "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 256,
                                                 "rms_norm_eps": 1e-6}))
        self.write("job.toml", re.sub(r"\[model\][^\[]*", '[model]\nhf_dir = "hf"\ninit = "hf"\n', JOB))
        header = json.dumps({"model.norm.weight": {"dtype": "F32", "shape": [32], "data_offsets": [0, 128]}}).encode()
        self.write("hf/model.safetensors", struct.pack("<Q", len(header)) + header + bytes(128))
        expected = 'write data.tokenizer = "hf/tokenizer.json"'
        error = self.ended("check", "--config", "job.toml", code=2)[1]
        self.assertNotIn("takes each byte for a token", error)  # the weights may come from a model of bytes
        self.write("hf/tokenizer.model", "")
        self.refused("check", "--config", "job.toml", expect=["takes each byte for a token", "'hf/tokenizer.model' lies beside"])
        self.write("hf/tokenizer.json", "{}")
        self.refused("check", "--config", "job.toml", expect=['data.format = "text" takes each byte for a token', expected])
        self.refused("--config", "job.toml", expect=expected)
        out, _ = self.ended("check", "--config", "job.toml", "--set", "model.init=random")
        self.assertNotIn(expected, out)

    # --- check finds what would fail later ---------------------------------------------------------------------------

    def test_check_and_the_run_find_wrong_data(self):
        ids = array.array("H", range(250)).tobytes() * 4
        header = struct.pack("<256i", 20240520, 1, 1000, *[0] * 253)
        self.write("short.txt", "x" * 16)
        self.write("zero.txt", b"text\0with a zero" * 100)
        self.write("utf16.txt", ("text " * 100).encode("utf-16-le"))
        self.write("odd.bin", ids + b"x")
        self.write("ids.bin", ids)
        self.write("high.bin", array.array("H", [1, 2, 999] * 100).tobytes())
        self.write("llmc.bin", header + ids)
        self.write("cut.bin", header + ids[:-2])
        self.write("empty.txt", "")
        (self.folder / "no_checkpoint").mkdir()
        as_bin, as_llmc = "data.format=bin", "data.format=llmc"
        cases = {
            "short": (['data.path="short.txt"'], "one sample of train.seq_len = 16 needs 17"),
            "empty": (['data.path="empty.txt"'], "has no tokens"),
            "zero": (['data.path="zero.txt"'], "byte 4 is 0"),
            "utf16": (['data.path="utf16.txt"'], "UTF-16"),
            "ids as text": (['data.path="ids.bin"'], "byte 0 is 0"),
            "odd": (['data.path="odd.bin"', as_bin], "2001 bytes are not a whole number of 2-byte ids"),
            "high": (['data.path="high.bin"', as_bin], "has id 999"),
            "wide": (['data.path="ids.bin"', as_bin, "data.dtype=uint32"], "data.dtype"),
            "llmc as bin": (['data.path="llmc.bin"', as_bin], "has llm.c's header"),
            "bin as llmc": (['data.path="ids.bin"', as_llmc], "not an llm.c token file"),
            "cut llmc": (['data.path="cut.bin"', as_llmc], "damaged or incomplete"),
            "no validation": (["data.val_fraction=0.0001", "eval.interval=1"], "0 tokens for validation"),
            "no validation at the end": (["data.val_fraction=0.0001"], "0 tokens for validation"),
            "all for validation": (["data.val_fraction=0.999"], "3 tokens for training"),
            "validation file": (['data.val_path="zero.txt"', "eval.interval=1"], "byte 4 is 0"),
        }
        for name, (settings, expected) in cases.items():
            with self.subTest(name):
                error = self.refused("check", "--config", "job.toml", settings=settings, expect=expected)
                self.assertRegex(error, r"^--set data\.|^job\.toml:\d+:\d+: data\.")
        for name in ("short", "zero"):
            with self.subTest(name):
                settings, expected = cases[name]
                self.refused("--config", "job.toml", settings=settings, expect=expected)
                self.assertFalse((self.folder / "run").exists(), "found before anything starts")
        self.refused("check", "--config", "job.toml", settings=['checkpoint.resume="no_checkpoint"'], expect="holds no checkpoint")
        self.refused("check", "--config", "job.toml", settings=['run.dir="data.txt/run"'], expect=["run.dir", "Not a directory"])
        # Read in their own format, the files are accepted.
        for settings in (['data.path="ids.bin"', as_bin], ['data.path="llmc.bin"', as_llmc], ["data.val_fraction=0.1"]):
            self.ended("check", "--config", "job.toml", settings=settings)

    def test_plan_needs_no_files(self):
        settings = ['data.path="nowhere.txt"', 'data.val_path="nowhere.txt"', 'checkpoint.resume="nowhere"']
        job = self.folder / "job.toml"
        self.refused("check", "--config", job, settings=settings, cwd="/", expect=["nowhere.txt", "checkpoint.resume"])
        plan = ["plan", "--costs", "modelled", "--config", job]  # measured costs differ each time
        here, elsewhere = (re.sub(r"about \d+ MB in each process", "", self.ended(*plan, settings=given, cwd=cwd)[0])
                           for given, cwd in ((['data.val_path="data.txt"'], None), (settings, "/")))  # the program itself is measured
        self.assertEqual(elsewhere, here)
        self.ended("plan", "--config", job, "--search", settings=settings, cwd="/")

    def test_a_digit_too_many(self):
        before = time.monotonic()
        self.refused("check", "--config", "job.toml", settings=["train.grad_accum_steps=16777216"], expect="16777216 microbatches")
        self.assertLess(time.monotonic() - before, 10)

    # --- ranks that differ -------------------------------------------------------------------------------------------

    def two_ranks(self, *commands):
        ranks = start_ranks([[PPTRAIN, *command] for command in commands], self.folder)
        return [self.finish(rank, 2) for rank in ranks]

    def test_ranks_with_another_job_or_other_data(self):
        plain = ["--config", "job.toml"]
        text = (self.folder / "data.txt").read_text()
        self.write("other_host/data.txt", text + "!")
        self.write("changed/data.txt", text.replace("happy", "sappy"))
        self.write("job2.toml", JOB.replace("seq_len = 16", "seq_len = 15"))
        cases = {
            "seq_len": ([*plain[:1], "job2.toml"], ["train.seq_len is 15, on rank 0 16"]),
            "longer": ([*plain, "--set", 'data.path="other_host/data.txt"'],
                       [f"data.path is {len(text) + 1} bytes, fingerprint ", f"on rank 0 {len(text)} bytes"]),
            "changed": ([*plain, "--set", 'data.path="changed/data.txt"'],
                        [f"data.path is {len(text)} bytes, fingerprint ", f"on rank 0 {len(text)} bytes"]),
        }
        for name, (other, expected) in cases.items():
            with self.subTest(name):
                (_, error), (_, silent) = self.two_ranks(plain, other)
                self.assertEqual(silent, "")
                self.assertIn("rank 1: (host ", error)
                for text_ in expected:
                    self.assertIn(text_, error)
                self.assertFalse((self.folder / "run").exists(), "found before the first step")

    # --- while it runs -----------------------------------------------------------------------------------------------

    def start_long(self, *settings, **options):
        process = self.start("--config", "job.toml", settings=["train.steps=1000000", *settings], **options)
        wait_for_steps([process], self.folder / "run", 3)
        return process

    def test_data_cut_under_a_run(self):
        self.write("data.txt", "All happy families are alike. " * 100_000)
        process = self.start_long()
        os.truncate(self.folder / "data.txt", 5000)
        _, error = self.finish(process, 1)
        self.assertIn("pptrain: 'data.txt' can no longer be read on host", error)

    def test_a_limit_on_file_sizes(self):
        error = self.refused("--config", "job.toml", code=1, limits={resource.RLIMIT_FSIZE: 20_000})
        self.assertRegex(error, r"cannot write to '.*': File too large")

    def test_memory_that_is_not_there(self):
        settings = ["model.hidden_size=4096", "model.intermediate_size=16384", "model.num_attention_heads=32", "run.force_memory=true"]
        error = self.refused("--config", "job.toml", code=1, settings=settings, limits={resource.RLIMIT_AS: 4 << 30},
                             expect=["out of memory: rank ", "weights and gradients of ", "pptrain plan predicts "])
        self.assertRegex(error, r"\d+ bytes \(\d+\.\d+ GB\) of host memory could not be allocated")
        # Enough for the weights, but not for a microbatch.
        settings = ["model.hidden_size=8192", "model.head_dim=8", "train.seq_len=2048", "train.micro_batch_size=32",
                    "run.force_memory=true"]
        error = self.refused("--config", "job.toml", code=1, settings=settings, limits={resource.RLIMIT_AS: 4 << 30},
                             expect=["out of memory: ", "pptrain plan predicts "])
        self.assertRegex(error, r"in (F stage 0|RECV_F stage 1) microbatch \d")

    def test_the_place_of_a_step_that_is_not_finite(self):
        process = self.start("--config", "job.toml", settings=[
            "optimizer.lr=1e30", "optimizer.weight_decay=0", "lr_schedule.warmup_steps=0", "train.steps=20", "train.max_skipped_steps=2"])
        out, error = self.finish(process, 1)
        self.assertRegex(error, r"grad norm (nan|inf); .*gradients are not finite from \S+\.weight, where the backward pass met")
        self.assertRegex(out, r"not finite: loss \S+, gradient norm \S+; .*\.weight")


if __name__ == "__main__":
    unittest.main(verbosity=2)
