"""Processes and hosts die for real, under scripts/elastic.sh: the run goes on, with the bits of one that nothing disturbed.

Usage: hosts_test.py PPTRAIN [unittest arguments]
"""

import pathlib
import random
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "test/support"))
sys.path.insert(0, str(ROOT / "scripts/bench"))
from bounds import seed  # noqa: E402
from elastic_deaths import Deaths  # noqa: E402
from elastic_hosts import Hosts, Run, wait, why_not  # noqa: E402
from elastic_leaks import Leaks  # noqa: E402
from pptrain import Case, checksums, job, latest, run, sets, steps  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
TORCHRUN = pathlib.Path(sys.executable).parent / "torchrun"
SETTINGS = ["checkpoint.memory_seconds=0.3", "lr_schedule.name=constant"]
JOB = job(train={"steps": 1_000_000, "grad_accum_steps": 6}, checkpoint={"interval": 100, "keep_last_n": 2}, lr_schedule={"warmup_steps": 2},
          distributed={"pp": 3, "dp_shard": 2, "heartbeat_s": 3}, optimizer={"lr": 1e-3})
DEATHS = ["rank", *Deaths.KINDS]


def numbers(run_dir):
    keys = ("step", "loss", "grad_norm", "lr", "tokens")
    return [[record.get(key) for key in keys] for record in steps(run_dir)]


WHY_NOT = why_not()


@unittest.skipIf(WHY_NOT, WHY_NOT)
class DyingHosts(Case):
    def test_twelve_deaths(self):
        """In ten accidents: "start" and "pair" are two each."""
        (self.folder / "job.toml").write_text(JOB)
        draw = random.Random(seed(7))
        kinds = DEATHS[:]
        draw.shuffle(kinds)
        result, self.run_ = self.folder / "run", Run(self.folder / "run")
        with Hosts(3, 2, 2, PPTRAIN, self.folder / "job.toml", [*SETTINGS, f"run.dir={result}"], self.folder, str(TORCHRUN)) as self.hosts:
            self.go_on()
            self.wait(lambda: self.run_.last_step() > 110, "a checkpoint on disk")
            deaths, leaks = Deaths(self.hosts, self.run_, draw), Leaks(self.hosts, self.run_, 2)
            for kind in kinds:
                with self.subTest(kind):
                    leaks.look()
                    self.die(deaths, kind)
                    self.go_on()
            leaks.look()
            run([PPTRAIN, "stop", result], self.folder)
            for host in self.hosts:
                self.wait(lambda: host.script.poll() is not None, "the agents' end")
                self.assertEqual(host.script.poll(), 0, self.logs())
            leaks.look_back()
        self.assertEqual(leaks.problems, [])
        last = self.run_.last_step()
        whole = self.folder / "whole"
        run([PPTRAIN, "--config", "job.toml", *sets(*SETTINGS, f'run.dir="{whole}"', f"train.steps={last}")], self.folder)
        self.assertEqual(checksums(latest(result)), checksums(latest(whole)))
        self.assertEqual(numbers(result), numbers(whole))
        self.assertFalse([path for path in result.glob("**/.tmp_*")])

    def logs(self):
        return "".join(f"--- {log.name}\n{log.read_text()[-4000:]}" for log in sorted(self.folder.glob("*.log")))

    def wait(self, condition, what):
        try:
            wait(condition, what, 60)
        except TimeoutError as error:
            self.fail(f"{error}: {self.logs()}")

    def die(self, deaths, kind):
        try:
            with getattr(deaths, kind)():
                self.wait(lambda: self.run_.resumes() > deaths.starts, "another start")
        except TimeoutError as error:
            self.fail(f"{error}: {self.logs()}")
        if kind == "pair":  # the copies of its files are lost
            self.wait(lambda: "/run/checkpoints/step_" in self.run_.start().get("checkpoint", ""), "a start from the disk")

    def go_on(self):
        """Waits until all hosts take part and the run makes steps, with copies in memory."""
        self.wait(lambda: all(len(host.ranks()) == 2 for host in self.hosts), "all hosts")
        reached = self.run_.last_step()
        self.wait(lambda: self.run_.last_step() > reached + 20, f"steps after {reached}")


if __name__ == "__main__":
    unittest.main()
