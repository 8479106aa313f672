"""A launcher does not wait for the current step: all ranks save the same last finished step.

Usage: quick_stop_test.py PPTRAIN MPIEXEC [unittest arguments]; MPIEXEC is "" in a build without MPI. This process is the
launcher (but for mpirun); PPTRAIN_SWEEP=N stops N runs at random times instead of a few.
"""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from pptrain import (checksums, is_open_mpi, job, latest, mpi_command, records, run, sets, start, start_ranks,  # noqa: E402
                     steps, temporary_folder, wait_for, wait_for_steps)

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
MPIEXEC = sys.argv.pop(1)
SWEEP = int(os.environ.get("PPTRAIN_SWEEP", 4))

# The learning rate is constant, so a step does not depend on the job's number of steps: runs of other lengths compare.
JOB = job(train={"steps": 1000}, optimizer={"lr": 1e-2}, lr_schedule={"name": "constant"}, metrics={"log_interval": 1})


class QuickStop(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = temporary_folder(cls.addClassCleanup)
        (cls.folder / "job.toml").write_text(JOB)
        # Enough microbatches that a step takes a second here, and a third of that under mpirun.
        cls.microbatches = 200
        cls.run_threads(cls, "trial", "train.steps=3")
        times = [step["step_time_s"] for step in steps(cls.folder / "trial")]
        cls.microbatches = max(8, int(200 / min(times)))
        cls.run_whole(cls, 4)

    def command(self, run_dir, *settings):
        grad_accum_steps = f"train.grad_accum_steps={self.microbatches}"
        return [PPTRAIN, "--config", "job.toml", *sets(f"run.dir={run_dir}", grad_accum_steps, *settings)]

    def run_threads(self, run_dir, *settings):
        run(QuickStop.command(self, run_dir, *settings), self.folder)

    def run_whole(self, count):
        QuickStop.run_threads(self, "whole", f"train.steps={count}", "checkpoint.interval=1", "checkpoint.keep_last_n=0")

    def numbers(self, run_dir, step):
        """The numbers of all steps up to this one."""
        path = self.folder / run_dir
        figures = [(r["step"], r["loss"], r["grad_norm"]) for r in steps(path) if r["step"] <= step]
        return figures, checksums(path / f"checkpoints/step_{step}")

    def start_ranks(self, run_dir, *settings, **extra):
        return start_ranks([self.command(run_dir, *settings)] * 2, self.folder, own_start=True, **extra)

    def wait_for_steps(self, processes, run_dir, count):
        wait_for_steps(processes, self.folder / run_dir, count)

    def wait_for_second_step(self, processes, run_dir):
        self.wait_for_steps(processes, run_dir, 1)
        time.sleep(0.15)  # until the middle of the step

    def saved_step(self, run_dir):
        return int(latest(self.folder / run_dir).name.removeprefix("step_"))

    def check_goes_on(self, run_dir):
        """The checkpoint is of the last recorded step, and the next step from it equals the uninterrupted run's."""
        saved = self.saved_step(run_dir)
        self.assertEqual(saved, steps(self.folder / run_dir)[-1]["step"])
        self.run_threads(run_dir, f"train.steps={saved + 1}")
        if not (self.folder / f"whole/checkpoints/step_{saved + 1}").exists():  # the steps were short
            self.run_whole(saved + 1)
        self.assertEqual(self.numbers(run_dir, saved + 1), self.numbers("whole", saved + 1))

    def check_said(self, run_dir, output, pattern, first):
        """Rank 0 names the saved step: `first`, or a later one if steps became quicker than when they were timed."""
        said = re.search(pattern, output)
        self.assertTrue(said, output)
        self.assertGreaterEqual(int(said[1]), first, output)
        self.assertEqual(int(said[1]), self.saved_step(run_dir), output)

    def stop_in_a_hurry(self, ranks, signalled):
        """The outputs of ranks that stop within the launcher's second."""
        before = time.monotonic()
        for rank in signalled:
            rank.send_signal(signal.SIGTERM)
        outputs = [rank.communicate(timeout=30) for rank in ranks]
        self.assertLess(time.monotonic() - before, 1.2, outputs)
        self.assertEqual([rank.returncode for rank in ranks], [3, 3], outputs)
        return outputs

    def test_a_launcher_in_a_hurry(self):
        ranks = self.start_ranks("tcp", PPTRAIN_STOP_SECONDS=1)
        self.wait_for_second_step(ranks, "tcp")
        outputs = self.stop_in_a_hurry(ranks, signalled=ranks)
        self.check_said("tcp", outputs[0][0], r"stopped by the launcher in the middle of a step; step (\d+) is saved in tcp/checkpoints", 1)
        self.assertEqual(outputs[1], ("", ""), "only rank 0 speaks")
        self.check_goes_on("tcp")

    def test_in_a_long_evaluation(self):
        # After the last step nothing but the evaluation and the save is left.
        ranks = self.start_ranks("evaluates", "train.steps=1", "eval.interval=1", "data.val_fraction=0.9", "eval.batches=0",
                                 "checkpoint.interval=0", PPTRAIN_STOP_SECONDS=1)
        self.wait_for_steps(ranks, "evaluates", 1)
        time.sleep(0.1)
        outputs = self.stop_in_a_hurry(ranks, signalled=ranks)
        self.assertIn("step 1 is saved in evaluates/checkpoints", outputs[0][0])
        run([PPTRAIN, "verify", "evaluates"], self.folder)

    def test_in_the_first_step(self):
        long_steps = f"train.grad_accum_steps={4 * self.microbatches}"
        ranks = self.start_ranks("first", long_steps, PPTRAIN_STOP_SECONDS=1)
        wait_for(lambda: records(self.folder / "first"), 60, "no start of the run")
        time.sleep(0.1)
        outputs = self.stop_in_a_hurry(ranks, signalled=ranks)
        self.assertIn("no step was finished, so there is nothing to save", outputs[0][0])
        self.assertEqual([], list((self.folder / "first/checkpoints").glob("step_*")))
        end = json.loads((self.folder / "first/end.json").read_text())
        self.assertEqual(("stopped", 0), (end["how"], end["step"]))
        self.run_threads("first", "train.steps=1")
        self.assertEqual(self.numbers("first", 1), self.numbers("whole", 1))  # it begins anew

    def test_a_run_with_post_validation_finishes_its_steps(self):
        ranks = self.start_ranks("validated", "optimizer.post_validation=true", PPTRAIN_STOP_SECONDS=1)
        self.wait_for_second_step(ranks, "validated")
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
        outputs = [rank.communicate(timeout=30) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [3, 3], outputs)
        self.check_said("validated", outputs[0][0], r"stopped by a signal at step (\d+)", 2)
        self.assertEqual(self.saved_step("validated"), steps(self.folder / "validated")[-1]["step"])

    def test_a_launcher_that_asks_one_rank(self):
        """One of several hosts is drained: its agent signals only its own ranks."""
        ranks = self.start_ranks("drained", PPTRAIN_STOP_SECONDS=1)
        self.wait_for_second_step(ranks, "drained")
        outputs = self.stop_in_a_hurry(ranks, signalled=ranks[1:])
        self.check_said("drained", outputs[0][0], r"stopped by the launcher in the middle of a step; step (\d+) is saved in drained/checkpoints", 1)
        self.check_goes_on("drained")

    def test_a_launcher_that_asks_one_rank_without_heartbeats(self):
        """Without heartbeats the other ranks do not learn of the signal, so the step is finished."""
        ranks = self.start_ranks("no_ring", "distributed.heartbeat_s=0", PPTRAIN_STOP_SECONDS=1)
        self.wait_for_second_step(ranks, "no_ring")
        ranks[1].send_signal(signal.SIGTERM)
        outputs = [rank.communicate(timeout=30) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [3, 3], outputs)
        self.check_said("no_ring", outputs[0][0], r"stopped by a signal at step (\d+)", 2)
        self.check_goes_on("no_ring")

    def test_somebody_else_may_wait_for_the_step(self):
        ranks = self.start_ranks("other", PPTRAIN_STOP_SECONDS=1)
        self.wait_for_second_step(ranks, "other")
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
        self.assertEqual(self.saved_step("short"), steps(self.folder / "short")[-1]["step"])

    def test_at_any_time(self):
        chance = random.Random(5)
        for turn in range(SWEEP):
            run_dir = f"any/{turn}"
            # Steps of some 20 ms with evaluations and saves between them; each rank gets the signal alone.
            settings = [f"train.grad_accum_steps={max(8, self.microbatches // 50)}",
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
                self.assertEqual(self.saved_step(run_dir), steps(self.folder / run_dir)[-1]["step"], outputs)
        run([PPTRAIN, "verify", "any"], self.folder)  # all runs there

    @unittest.skipUnless(is_open_mpi(MPIEXEC), "built without Open MPI")
    def test_mpirun(self):
        for name in ("SIGTERM", "SIGINT"):
            with self.subTest(name):
                run_dir = f"mpirun_{name}"
                process = start([*mpi_command(MPIEXEC, 2), *self.command(run_dir)], self.folder)
                self.wait_for_steps([process], run_dir, 1)
                process.send_signal(getattr(signal, name))
                output = process.communicate(timeout=60)
                self.assertIn("is saved in", output[0], output)
                self.check_goes_on(run_dir)


if __name__ == "__main__":
    unittest.main(verbosity=2)
