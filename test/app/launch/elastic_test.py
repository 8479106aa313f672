"""Runs under PyTorch's torchrun, which starts all ranks again when one has ended with a failure.

Usage: elastic_test.py PPTRAIN [unittest arguments]
"""

import json
import os
import pathlib
import random
import signal
import sys
import time
import traceback
import unittest

from torch.distributed.run import main as torchrun_main

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from bounds import seed  # noqa: E402
from pptrain import Case, checksums, environment, free_port, job, latest, records, run, sets, steps, wait_for  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
STEPS = 240
JOB = job(train={"steps": STEPS}, checkpoint={"interval": 10, "keep_last_n": 2}, lr_schedule={"warmup_steps": 2},
          distributed={"pp": 2, "heartbeat_s": 3}, optimizer={"lr": 1e-3})


def numbers(run_dir):
    keys = ("step", "loss", "grad_norm", "lr", "tokens")
    return [[record.get(key) for key in keys] for record in steps(run_dir)]


def children(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Agent:
    """torchrun in a session of its own, forked from this process, where it is loaded."""

    def __init__(self, arguments, folder, name, env):
        self.returncode = None
        self.output, self.log = folder / f"{name}.out.txt", folder / f"{name}.txt"
        self.pid = os.fork()
        if self.pid == 0:
            self.become(arguments, folder, env)

    def become(self, arguments, folder, env):
        code = 1
        try:
            os.setsid()
            os.chdir(folder)
            for stream, file in ((1, self.output), (2, self.log)):
                os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT, 0o644), stream)
            os.environ.clear()
            os.environ.update(env)
            torchrun_main([str(argument) for argument in arguments])
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def kill(self):
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


class Elastic(Case):
    def setUp(self):
        super().setUp()
        (self.folder / "job.toml").write_text(JOB)
        self.port = free_port()
        self.agents = []

    def torchrun(self, *settings, agents=1, least=None, here=None, **extra):
        """The job's two ranks, by one agent or by one each, `here` of which start; agents of a run meet at the same port."""
        for number in range(here or agents):
            arguments = ["--nnodes", f"{least or agents}:{agents}", "--nproc-per-node", 2 // agents,
                         "--max-restarts", 5, "--monitor-interval", 0.1, "--rdzv-backend", "c10d", "--rdzv-id", self.id(),
                         "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--local-addr", "127.0.0.1",
                         "--rdzv-conf", f"last_call_timeout=1,keep_alive_interval=1,is_host={int(number == 0)}",
                         "--no-python", PPTRAIN, "--config", "job.toml", *sets('run.dir="run"', *settings)]
            self.agents.append(Agent(arguments, self.folder, f"agent_{number}",
                                     environment(TORCHELASTIC_ERROR_FILE=self.folder / "error.json", **extra)))
            self.addCleanup(self.agents[-1].kill)

    def log(self):
        return "".join(agent.log.read_text() for agent in self.agents)

    def ended(self, seconds=90):
        """The agents' exit codes."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if all(agent.poll() is not None for agent in self.agents):
                return [agent.returncode for agent in self.agents]
            time.sleep(0.05)
        self.fail(f"torchrun did not end: {self.log()}")

    def wait_for_step(self, step):
        wait_for(lambda: any(r["step"] >= step for r in steps(self.folder / "run")), 60, lambda: f"step {step}: {self.log()}")

    def starts(self):
        return [record["start"] for record in records(self.folder / "run") if "start" in record]

    def check_killed_ranks(self, *settings, **options):
        """Kills a rank twice; the run goes on from its checkpoints, with the bits of one that nothing disturbed."""
        whole = self.folder / "whole"
        run([PPTRAIN, "--config", "job.toml", *sets(f'run.dir="{whole}"', *settings)], self.folder)
        draw = random.Random(seed(4))
        self.torchrun(*settings, **options)
        for step in (35, 75):
            self.wait_for_step(step)
            victims = [rank for agent in self.agents for rank in children(agent.pid)]
            os.kill(draw.choice(victims), signal.SIGKILL)
        self.assertEqual(self.ended(), [0] * len(self.agents), self.log())
        result = self.folder / "run"
        self.assertEqual(checksums(latest(result)), checksums(latest(whole)))
        self.assertEqual(numbers(result), numbers(whole))
        self.assertEqual(self.starts(), ["new", "resume", "resume"])
        left = {path.name for path in result.iterdir()} - {path.name for path in whole.iterdir()}
        self.assertLessEqual(left, {"metrics.repeated.jsonl", "last_words.txt", "log.rank_1.txt", "pace.json", "starts"})

    def test_a_killed_rank(self):
        self.check_killed_ranks()

    def test_a_killed_rank_of_an_agent_that_has_restarted_more_often_than_the_other(self):
        self.check_killed_ranks(agents=2)

    def test_a_killed_rank_with_copies_in_memory(self):
        """No checkpoint is on disk, and most steps do not run again."""
        self.check_killed_ranks("checkpoint.interval=0", "checkpoint.memory_seconds=0.02")
        resumed = [record for record in records(self.folder / "run") if record.get("start") == "resume"]
        for start_record, killed_after in zip(resumed, (35, 75)):
            self.assertIn("/dev/shm/pptrain-", start_record["checkpoint"])
            self.assertGreater(start_record["step"], killed_after - 35)
            self.assertFalse(pathlib.Path(start_record["checkpoint"]).parent.exists())

    def test_an_agent_that_dies_with_its_ranks(self):
        """As a host that dies: the other agent's process then has the whole pipeline."""
        whole = self.folder / "whole"
        run([PPTRAIN, "--config", "job.toml", *sets(f'run.dir="{whole}"')], self.folder)
        self.torchrun(agents=2, least=1, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1)
        self.wait_for_step(35)
        os.killpg(self.agents[1].pid, signal.SIGKILL)
        self.assertEqual(self.ended(), [0, -signal.SIGKILL], self.log())
        self.assertIn("2 ranks, but 1 process: the pipeline has 1 rank instead of 2", self.agents[0].output.read_text())
        self.assertEqual(checksums(latest(self.folder / "run")), checksums(latest(whole)))
        self.assertEqual(numbers(self.folder / "run"), numbers(whole))

    def check_final(self, *settings):
        self.torchrun(*settings)
        self.assertEqual(self.ended(), [0], self.log())
        self.assertLessEqual(len(self.starts()), 1)

    def test_a_run_that_is_stopped_is_not_started_again(self):
        self.torchrun("train.steps=100000")
        self.wait_for_step(5)
        run([PPTRAIN, "stop", "run"], self.folder)
        self.assertEqual(self.ended(), [0], self.log())
        self.assertEqual(self.starts(), ["new"])
        self.assertEqual(json.loads((self.folder / "run/end.json").read_text())["how"], "stopped")

    def test_a_bad_job_is_not_started_again(self):
        self.check_final("distributed.pp=9")
        self.assertEqual(self.log().count("1f1b on 9 ranks"), 1, self.log())

    def test_a_run_that_fails_at_once_is_not_started_for_ever(self):
        self.torchrun("optimizer.lr=1e38", "train.max_skipped_steps=0", "lr_schedule.warmup_steps=0")  # the second step fails
        self.assertEqual(self.ended(), [0], self.log())
        self.assertEqual(self.log().count("3 starts in"), 1, self.log())
        self.assertIn("made no step after step 1", self.log())

    def test_nor_is_it_while_a_host_is_missing(self):
        self.torchrun("optimizer.lr=1e38", "train.max_skipped_steps=0", "lr_schedule.warmup_steps=0", agents=2, least=1, here=1)
        self.assertEqual(self.ended(), [0], self.log())
        self.assertEqual(self.log().count("3 starts in"), 1, self.log())

    def test_a_run_that_diverges_is_not_started_again(self):
        self.check_final("train.divergence_steps=3", "train.divergence_window=8", "train.divergence_band=1e-3", "optimizer.lr=3",
                         "train.grad_clip=0", "lr_schedule.warmup_steps=20")
        self.assertEqual(json.loads((self.folder / "run/end.json").read_text())["how"], "diverged")

    def test_ranks_end_with_their_agent(self):
        self.torchrun("train.steps=100000")
        self.wait_for_step(5)
        ranks = children(self.agents[0].pid)
        self.assertEqual(len(ranks), 2)
        os.kill(self.agents[0].pid, signal.SIGKILL)
        wait_for(lambda: not any(pathlib.Path(f"/proc/{rank}/status").exists() and
                                 "State:\tZ" not in pathlib.Path(f"/proc/{rank}/status").read_text() for rank in ranks),
                 3, "the ranks' end")


if __name__ == "__main__":
    unittest.main()
