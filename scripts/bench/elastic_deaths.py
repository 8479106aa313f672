"""The ways in which processes and hosts of a run under scripts/elastic.sh die, and come back."""

import os
import random
import time
from contextlib import contextmanager
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM, Signals

from elastic_hosts import Host, Run, name_of, wait


class Deaths:
    """A method for each kind, for a with statement: it has died when the body begins, and is back with the others at the end.

    `at` is the time of the death, time.monotonic(), `ranks` are the processes that had been there, `starts` the starts and `reached` the
    steps that the run had made. The body ends when the run has started again.
    """

    KINDS = ("rank", "start", "agent", "stopped", "cable", "signal", "host", "store", "pair")

    def __init__(self, hosts: list[Host], run: Run, draw: random.Random):
        self.hosts, self.run, self.draw = hosts, run, draw
        self.at, self.ranks, self.starts, self.reached = 0.0, [], 0, 0

    def others(self) -> list[Host]:
        """Hosts without the meeting point."""
        return [host for host in self.hosts if not host.has_store()]

    def now(self, *pids: int, by: Signals = SIGKILL) -> None:
        """The moment of the death: these processes get a signal."""
        self.ranks = [rank for host in self.hosts for rank in host.ranks()]
        self.starts, self.reached = self.run.resumes(), max(self.reached, self.run.last_step())
        self.at = time.monotonic()
        for pid in pids:
            os.kill(pid, by)

    def a_rank(self) -> int:
        return self.draw.choice([rank for host in self.hosts for rank in host.ranks()])

    def come_back(self, hosts: list[Host]) -> None:
        """Starts hosts again; those that had gone on without them start anew with them."""
        starts = self.run.resumes()
        for host in hosts:
            host.start()
        wait(lambda: self.run.resumes() > starts, "a start with all hosts")

    @contextmanager
    def rank(self):
        self.now(self.a_rank())
        yield

    @contextmanager
    def start(self):
        """Two deaths, the second as the ranks have just started again."""
        self.now(self.a_rank())
        new = []

        def appear() -> list[int]:
            new[:] = [rank for host in self.hosts for rank in host.ranks() if rank not in self.ranks]
            return new

        wait(appear, "new ranks")
        self.now(self.draw.choice(new))
        yield

    @contextmanager
    def agent(self):
        """torchrun on a host; its ranks end with it, and elastic.sh starts another one."""
        self.now(self.draw.choice(self.draw.choice(self.hosts).agents()))
        yield

    @contextmanager
    def stopped(self):
        """A rank does nothing for longer than heartbeat_s, and then goes on."""
        rank = self.a_rank()
        self.now(rank, by=SIGSTOP)
        time.sleep(4)
        os.kill(rank, SIGCONT)
        yield

    @contextmanager
    def cable(self):
        host = self.draw.choice(self.others())
        self.now()
        host.cut()
        yield
        starts = self.run.resumes()
        host.cut(plugged=True)
        wait(lambda: self.run.resumes() > starts, "a start with all hosts")

    @contextmanager
    def signal(self):
        """SIGTERM to a host's script: its ranks leave, and the others go on."""
        host = self.draw.choice(self.others())
        self.now(min(pid for pid in host.pids() if name_of(pid) == "bash"), by=SIGTERM)
        yield
        wait(lambda: host.script.poll() is not None, "the script's end")
        self.come_back([host])

    @contextmanager
    def host(self, store: bool = False):
        host = next(host for host in self.hosts if host.has_store()) if store else self.draw.choice(self.others())
        self.now()
        host.die()
        yield
        self.come_back([host])

    def store(self):
        """The host at which the agents meet."""
        return self.host(store=True)

    @contextmanager
    def pair(self):
        """A host, and the one that keeps its files: their copies are lost, and the run waits for them and goes on from the disk."""
        hosts = self.draw.sample(self.others(), 2)
        self.now()
        for host in hosts:
            host.die()
        self.come_back(hosts)
        yield
