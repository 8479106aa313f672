"""Processes and hosts die for real, under scripts/elastic.sh: the run goes on, with the bits of one that nothing disturbed.

Usage: hosts_test.py PPTRAIN [unittest arguments]
"""

import os
import pathlib
import random
import shutil
import signal
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "test/support"))
sys.path.insert(0, str(ROOT / "scripts/bench"))
from bounds import seed  # noqa: E402
from elastic_hosts import Hosts, Run, name_of, wait, why_not  # noqa: E402
from pptrain import Case, checksums, job, latest, records, run, sets, steps  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
TORCHRUN = pathlib.Path(sys.executable).parent / "torchrun"
SETTINGS = ["checkpoint.memory_seconds=0.3", "lr_schedule.name=constant"]
JOB = job(train={"steps": 1_000_000, "grad_accum_steps": 6}, checkpoint={"interval": 100, "keep_last_n": 2}, lr_schedule={"warmup_steps": 2},
          distributed={"pp": 3, "dp_shard": 2, "heartbeat_s": 3}, optimizer={"lr": 1e-3})
DEATHS = ["rank", "rank", "host", "store", "agent", "cable", "stopped", "start", "pair", "signal"]


def numbers(run_dir):
    keys = ("step", "loss", "grad_norm", "lr", "tokens")
    return [[record.get(key) for key in keys] for record in steps(run_dir)]


WHY_NOT = why_not()


@unittest.skipIf(WHY_NOT, WHY_NOT)
class DyingHosts(Case):
    def test_twelve_deaths(self):
        """In ten accidents: "start" and "pair" are two each."""
        (self.folder / "job.toml").write_text(JOB)
        self.draw = random.Random(seed(7))
        deaths = DEATHS[:]
        self.draw.shuffle(deaths)
        result, self.run_ = self.folder / "run", Run(self.folder / "run")
        with Hosts(3, 2, 2, PPTRAIN, self.folder / "job.toml", [*SETTINGS, f"run.dir={result}"], self.folder, str(TORCHRUN)) as self.hosts:
            self.go_on()
            self.wait(lambda: self.run_.last_step() > 110, "a checkpoint on disk")
            for death in deaths:
                with self.subTest(death):
                    starts = self.run_.resumes()
                    getattr(self, f"die_{death}")()
                    self.wait(lambda: self.run_.resumes() > starts, "another start")
                    self.go_on()
            run([PPTRAIN, "stop", result], self.folder)
            for host in self.hosts:
                self.wait(lambda: host.script.poll() is not None, "the agents' end")
                self.assertEqual(host.script.poll(), 0, self.logs())
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

    def go_on(self):
        """Waits until all hosts take part and the run makes steps, with copies in memory."""
        self.wait(lambda: all(len(host.ranks()) == 2 for host in self.hosts), "all hosts")
        reached = self.run_.last_step()
        self.wait(lambda: self.run_.last_step() > reached + 20, f"steps after {reached}")

    def ranks(self):
        return [rank for host in self.hosts for rank in host.ranks()]

    def kill_rank(self):
        os.kill(self.draw.choice(self.ranks()), signal.SIGKILL)

    def lose(self, hosts):
        for host in hosts:
            host.die()
        starts = self.run_.resumes()
        if len(hosts) == 1:
            self.wait(lambda: self.run_.resumes() > starts, "a start without the host")
        for host in hosts:
            host.start()
        self.wait(lambda: self.run_.resumes() > starts + (len(hosts) == 1), "a start with all hosts")

    def others(self):
        """Hosts without the meeting point."""
        return [host for host in self.hosts if not host.has_store()]

    def die_rank(self):
        self.kill_rank()

    def die_host(self):
        self.lose([self.draw.choice(self.others())])

    def die_store(self):
        self.lose([next(host for host in self.hosts if host.has_store())])

    def die_agent(self):
        os.kill(self.draw.choice(self.draw.choice(self.hosts).agents()), signal.SIGKILL)

    def die_cable(self):
        host = self.draw.choice(self.others())
        starts = self.run_.resumes()
        host.cut()
        self.wait(lambda: self.run_.resumes() > starts, "a start without the host")
        host.cut(plugged=True)
        self.wait(lambda: self.run_.resumes() > starts + 1, "a start with all hosts")

    def die_stopped(self):
        process = self.draw.choice(self.ranks())
        os.kill(process, signal.SIGSTOP)
        time.sleep(4)  # longer than heartbeat_s
        os.kill(process, signal.SIGCONT)

    def die_signal(self):
        """SIGTERM to a host's script: its ranks leave, and the others go on."""
        host = self.draw.choice(self.others())
        starts = self.run_.resumes()
        script = min(pid for pid in host.pids() if name_of(pid) == "bash")
        os.kill(script, signal.SIGTERM)
        self.wait(lambda: self.run_.resumes() > starts, "a start without the host")
        self.wait(lambda: host.script.poll() is not None, "the script's end")
        host.start()
        self.wait(lambda: self.run_.resumes() > starts + 1, "a start with all hosts")

    def die_start(self):
        """Two deaths, the second as the ranks have just started again."""
        old = set(self.ranks())
        self.kill_rank()
        new = []

        def appear():
            new[:] = [rank for rank in self.ranks() if rank not in old]
            return new

        self.wait(appear, "new ranks")
        os.kill(self.draw.choice(new), signal.SIGKILL)

    def die_pair(self):
        """A host, and the one that keeps its files: their copies are lost, and the run goes on from the disk."""
        self.lose(self.draw.sample(self.others(), 2))

        def from_disk():
            starts = [record for record in records(self.folder / "run") if "start" in record]
            return "/run/checkpoints/step_" in starts[-1].get("checkpoint", "")

        self.wait(from_disk, "a start from the disk")


if __name__ == "__main__":
    unittest.main()
