"""A launcher that does not wait for the step under way: the last finished step is saved, on all ranks the same one.

Usage: quick_stop_test.py PPTRAIN MPIEXEC [unittest arguments]; MPIEXEC is "" in a build without MPI. This process is the
launcher (but for mpirun); PPTRAIN_SWEEP=N stops N runs at random times instead of a few.
"""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from launch import environment, free_port, is_open_mpi, mpi_command, rank_environment  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
MPIEXEC = sys.argv.pop(1)
SOURCE = pathlib.Path(__file__).resolve().parents[3]
SWEEP = int(os.environ.get("PPTRAIN_SWEEP", 4))

JOB = f"""
[model]
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 4
num_attention_heads = 4
vocab_size = 256
[distributed]
pp = 2
[train]
steps = 4
seq_len = 16
micro_batch_size = 2
[data]
path = "{SOURCE / "configs/data/tinyshakespeare.txt"}"
[optimizer]
lr = 1e-2
[lr_schedule]
warmup_steps = 2
[metrics]
log_interval = 1
peak_tflops = 1
"""


class QuickStop(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="pptrain_stop_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        (cls.folder / "job.toml").write_text(JOB)
        # So many microbatches that a step takes two seconds here.
        cls.microbatches = 500
        cls.run_threads(cls, "trial", "train.steps=3")
        times = [record["step_time_s"] for record in cls.records(cls, "trial")]
        cls.microbatches = max(8, int(500 * 2 / min(times)))
        cls.run_threads(cls, "whole")
        cls.whole = cls.numbers(cls, "whole")

    def arguments(self, run_dir, *settings):
        result = ["--config", "job.toml", "--set", f"run.dir={run_dir}", "--set", f"train.grad_accum_steps={self.microbatches}"]
        for setting in settings:
            result += ["--set", setting]
        return result

    def run_threads(self, run_dir, *settings):
        subprocess.run([PPTRAIN, *QuickStop.arguments(self, run_dir, *settings)], cwd=self.folder, env=environment(),
                       check=True, capture_output=True, timeout=120)

    def records(self, run_dir):
        """The steps that were done; a line may be cut while it is written."""
        file = self.folder / run_dir / "metrics.jsonl"
        result = []
        for line in file.read_text().splitlines() if file.exists() else []:
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue
            if "grad_norm" in record:
                result.append(record)
        return result

    def numbers(self, run_dir):
        root = self.folder / run_dir / "checkpoints"
        manifest = json.loads((root / (root / "latest").read_text().strip() / "manifest.json").read_text())
        tensors = {f"{stored['file']}/{name}": tensor["xxh3_128"]
                   for stored in manifest["files"] for name, tensor in stored["tensors"].items()}
        return [(r["step"], r["loss"], r["grad_norm"]) for r in QuickStop.records(self, run_dir)], tensors

    def start_ranks(self, run_dir, *settings, **extra):
        port = free_port()
        return [subprocess.Popen([str(PPTRAIN), *self.arguments(run_dir, *settings)], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True, cwd=self.folder,
                                 env=rank_environment(rank, 2, port, **extra)) for rank in range(2)]

    def wait_for_steps(self, processes, run_dir, steps):
        deadline = time.monotonic() + 60
        while len(self.records(run_dir)) < steps:
            self.assertLess(time.monotonic(), deadline)
            for process in processes:
                self.assertIsNone(process.poll(), process.communicate() if process.poll() is not None else "")
            time.sleep(0.02)

    def saved_step(self, run_dir):
        return int((self.folder / run_dir / "checkpoints/latest").read_text().strip().removeprefix("step_"))

    def check_goes_on(self, run_dir):
        """The checkpoint is of the last step that was recorded, and resuming from it makes the uninterrupted run."""
        self.assertEqual(self.saved_step(run_dir), self.records(run_dir)[-1]["step"])
        self.run_threads(run_dir)
        self.assertEqual(self.numbers(run_dir), self.whole)

    def check_said(self, run_dir, output, pattern, first):
        """Rank 0 names the step that is saved: `first` or, where steps became quicker than when they were timed, a later one."""
        said = re.search(pattern, output)
        self.assertTrue(said, output)
        self.assertGreaterEqual(int(said[1]), first, output)
        self.assertEqual(int(said[1]), self.saved_step(run_dir), output)

    def test_a_launcher_in_a_hurry(self):
        ranks = self.start_ranks("tcp", PPTRAIN_STOP_SECONDS=1)
        self.wait_for_steps(ranks, "tcp", 2)
        time.sleep(0.5)  # into the third step
        before = time.monotonic()
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
        outputs = [rank.communicate(timeout=30) for rank in ranks]
        self.assertLess(time.monotonic() - before, 1.2, outputs)
        self.assertEqual([rank.returncode for rank in ranks], [3, 3], outputs)
        self.check_said("tcp", outputs[0][0], r"stopped by the launcher in the middle of a step; step (\d+) is saved in tcp/checkpoints", 2)
        self.assertEqual(outputs[1], ("", ""), "only rank 0 speaks")
        self.check_goes_on("tcp")

    def test_a_launcher_that_asks_one_rank(self):
        """One host of several is drained: its agent's signal comes to its own ranks alone."""
        ranks = self.start_ranks("drained", PPTRAIN_STOP_SECONDS=1)
        self.wait_for_steps(ranks, "drained", 2)
        time.sleep(0.5)  # into the third step
        before = time.monotonic()
        ranks[1].send_signal(signal.SIGTERM)
        outputs = [rank.communicate(timeout=30) for rank in ranks]
        self.assertLess(time.monotonic() - before, 1.2, outputs)
        self.assertEqual([rank.returncode for rank in ranks], [3, 3], outputs)
        self.check_said("drained", outputs[0][0], r"stopped by the launcher in the middle of a step; step (\d+) is saved in drained/checkpoints", 2)
        self.check_goes_on("drained")

    def test_a_launcher_that_asks_one_rank_without_heartbeats(self):
        """Nobody tells the others, so nothing is held: the step is finished."""
        ranks = self.start_ranks("no_ring", "distributed.heartbeat_s=0", PPTRAIN_STOP_SECONDS=1)
        self.wait_for_steps(ranks, "no_ring", 1)
        ranks[1].send_signal(signal.SIGTERM)
        outputs = [rank.communicate(timeout=30) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [3, 3], outputs)
        self.check_said("no_ring", outputs[0][0], r"stopped by a signal at step (\d+)", 2)
        self.check_goes_on("no_ring")

    def test_somebody_else_may_wait_for_the_step(self):
        ranks = self.start_ranks("other", PPTRAIN_STOP_SECONDS=1)
        self.wait_for_steps(ranks, "other", 1)
        subprocess.run([sys.executable, "-c", f"import os; os.kill({ranks[1].pid}, {int(signal.SIGTERM)})"], check=True)
        outputs = [rank.communicate(timeout=30) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [3, 3], outputs)
        self.check_said("other", outputs[0][0], r"stopped by a signal at step (\d+)", 2)
        self.check_goes_on("other")

    def test_a_run_of_short_steps_stops_in_order(self):
        ranks = self.start_ranks("short", "train.grad_accum_steps=4", "train.steps=100000", PPTRAIN_STOP_SECONDS=2)
        self.wait_for_steps(ranks, "short", 10)
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
        outputs = [rank.communicate(timeout=30) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [3, 3], outputs)
        self.assertIn("stopped by a signal at step", outputs[0][0])
        self.assertEqual(self.saved_step("short"), self.records("short")[-1]["step"])

    def test_at_any_time(self):
        chance = random.Random(5)
        for turn in range(SWEEP):
            run_dir = f"any_{turn}"
            # Steps of some 20 ms with evaluations and saves between them, and a signal that comes to each rank alone.
            settings = ["train.steps=1000", f"train.grad_accum_steps={max(8, self.microbatches // 100)}",
                        "checkpoint.interval=7", "checkpoint.keep_last_n=2"]
            ranks = self.start_ranks(run_dir, *settings, PPTRAIN_STOP_SECONDS=0.02)
            self.wait_for_steps(ranks, run_dir, 1)
            time.sleep(chance.random() * 0.6)
            for rank in chance.sample(ranks, 2):
                rank.send_signal(signal.SIGTERM)
                time.sleep(chance.random() * 0.02)
            outputs = [rank.communicate(timeout=30) for rank in ranks]
            with self.subTest(run_dir):
                self.assertEqual([rank.returncode for rank in ranks], [3, 3], outputs)
                self.assertEqual(self.saved_step(run_dir), self.records(run_dir)[-1]["step"], outputs)
                subprocess.run([PPTRAIN, "verify", f"{run_dir}/checkpoints"], cwd=self.folder, check=True,
                               capture_output=True)
            shutil.rmtree(self.folder / run_dir)

    @unittest.skipUnless(is_open_mpi(MPIEXEC), "built without Open MPI")
    def test_mpirun(self):
        for name in ("SIGTERM", "SIGINT"):
            with self.subTest(name):
                run_dir = f"mpirun_{name}"
                process = subprocess.Popen([*mpi_command(MPIEXEC, 2), PPTRAIN, *self.arguments(run_dir)], text=True, cwd=self.folder,
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
                self.wait_for_steps([process], run_dir, 2)
                process.send_signal(getattr(signal, name))
                output = process.communicate(timeout=60)
                self.assertIn("is saved in", output[0], output)
                self.check_goes_on(run_dir)


if __name__ == "__main__":
    unittest.main(verbosity=2)
