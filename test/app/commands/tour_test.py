"""Each launcher and each subcommand once, as users start them.

Usage: tour_test.py PPTRAIN MPIEXEC [unittest arguments]; MPIEXEC is "" in a build without MPI
"""

import pathlib
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import pptrain  # noqa: E402
from pptrain import (SOURCE, TEXT, checksums, environment, free_port, job, latest, mpi_command, run, sets, start,  # noqa: E402
                     start_ranks, steps, temporary_folder, wait_for_steps)

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
MPIEXEC = sys.argv.pop(1)
JOB = job(data={"val_fraction": 0.1}, eval={"batches": 1}, checkpoint={"interval": 2})
TOKENIZER = SOURCE / "test/core/text/tokenizer/definitions/llama3/tokenizer.json"


def command(run_dir, *settings):
    return [PPTRAIN, "--config", "job.toml", *sets(f"run.dir={run_dir}", *settings)]


class Tour(pptrain.Case):
    @classmethod
    def setUpClass(cls):
        cls.whole = temporary_folder(cls.addClassCleanup)
        (cls.whole / "job.toml").write_text(JOB)
        run(command("threads"), cls.whole)

    def setUp(self):
        super().setUp()
        shutil.copytree(self.whole, self.folder, dirs_exist_ok=True)

    def check_bits(self, run_dir):
        threads = self.folder / "threads"
        self.assertEqual([s["loss"] for s in steps(self.folder / run_dir)], [s["loss"] for s in steps(threads)])
        self.assertEqual(checksums(latest(self.folder / run_dir)), checksums(latest(threads)))

    def finish(self, processes):
        outputs = [process.communicate(timeout=120) for process in processes]
        self.assertEqual([process.returncode for process in processes], [0] * len(processes), outputs)

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_mpirun(self):
        run([*mpi_command(MPIEXEC, 2), *command("mpi")], self.folder)
        self.check_bits("mpi")

    def test_torchrun(self):
        self.finish(start_ranks([command("tcp")] * 2, self.folder))
        self.check_bits("tcp")

    def test_srun(self):
        step = {"SLURM_JOB_ID": free_port(), "SLURM_STEP_ID": 0, "SLURM_STEP_NUM_NODES": 1, "SLURM_STEP_NUM_TASKS": 2,
                "SLURM_NTASKS": 2, "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}
        self.finish([start(command("slurm"), self.folder, env=environment(**step, SLURM_PROCID=rank, SLURM_LOCALID=rank)) for rank in range(2)])
        self.check_bits("slurm")

    def test_every_subcommand(self):
        (self.folder / "text.jsonl").write_text('{"text": "All happy families are alike."}\n' * 20)
        ended = [  # in this order; the least that each prints
            (["check", "--config", "job.toml"], "pp"),
            (["doctor", "--config", "job.toml"], "memory"),
            (["plan", "--config", "job.toml"], "bubble"),
            (["eval", "threads"], "loss"),
            (["generate", "threads", "--prompt", "All", "--max-tokens", "3", "--json"], "All"),
            (["status", "threads"], "step"),
            (["report", "threads", "-o", "page.html"], "page.html"),
            (["verify", "threads/checkpoints"], "sound"),
            (["diff", "threads/checkpoints/step_2", "threads"], "39 different"),
            (["fork", "threads", "--to", "second"], "second"),
            (["resume", "threads", *sets("train.steps=5", "distributed.pp=1")], "step 5"),
            (["bisect", "threads", "threads"], "equal"),
            (["convert", "--from", "threads", "--to", "hf"], "hf"),
            (["tokenize", "--tokenizer", TOKENIZER, "--out", "tokens", "--key", "text", "text.jsonl"], "tokens"),
            (["config", "train.steps"], "steps = 1000"),
            (["completion", "bash"], "complete"),
        ]
        for arguments, said in ended:
            with self.subTest(arguments[0]):
                code = {"doctor": None, "diff": 1, "status": 3}.get(arguments[0], 0)  # as the links are; different; finished
                self.assertIn(said, run([PPTRAIN, *arguments], self.folder, code=code).stdout)
        going = start(command("going", "train.steps=1000000", "eval.interval=1000000", "checkpoint.interval=0"), self.folder)
        wait_for_steps([going], self.folder / "going", 2)
        for word in ("save", "stop"):
            self.assertIn("step_", run([PPTRAIN, word, "going"], self.folder).stdout)
        output = going.communicate(timeout=60)
        self.assertIn(going.returncode, (0, 3), output)
        listed = subprocess.run([PPTRAIN, "--help"], capture_output=True, text=True).stdout.split("Subcommands:")[1]
        self.assertEqual({arguments[0] for arguments, _ in ended} | {"save", "stop"}, set(re.findall(r"^  (\w+) ", listed, re.MULTILINE)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
