"""What a run under scripts/elastic.sh holds: processes, descriptors, memory and files. It must not grow with the deaths."""

import os
from pathlib import Path

from elastic_hosts import Host, Run


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def megabytes(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class Leaks:
    """Compares with the first look. `problems` are what has been found, as text."""

    def __init__(self, hosts: list[Host], run: Run, processes: int):
        self.hosts, self.run, self.processes = hosts, run, processes
        self.first: dict[str, float] = {}
        self.newest: dict[str, float] = {}
        self.problems: list[str] = []
        self.memories: list[int] = []  # keeps each host's last /dev/shm open, beyond its namespace's end

    def expect(self, good: bool, problem: str) -> None:
        if not good and problem not in self.problems:
            print(problem, flush=True)
            self.problems.append(problem)

    def look(self) -> None:
        """While all hosts make steps."""
        ranks = [rank for host in self.hosts for rank in host.ranks()]
        agents = [agent for host in self.hosts for agent in host.agents()]
        for what, pids, expected in (("ranks", ranks, self.processes * len(self.hosts)), ("agents", agents, len(self.hosts))):
            self.expect(len(pids) == expected, f"{len(pids)} {what} instead of {expected}")
        self.newest = {
            "descriptors of a rank": max(map(descriptors, ranks)),
            "MB of a rank": max(map(megabytes, ranks)),
            "descriptors of an agent": max(map(descriptors, agents)),
            "MB of an agent": max(map(megabytes, agents)),
            # A rank's log comes with its first accusation, a resolved.N.toml with the first change to a length of the pipeline.
            "files in run.dir": len([path for path in self.run.folder.iterdir() if not path.name.startswith(("log.rank_", "resolved."))]),
        }
        self.first = self.first or self.newest
        for name, value in self.newest.items():  # 8: a descriptor of a connection more or less is no leak
            self.expect(value <= 1.25 * self.first[name] + 8, f"{name} have grown: {self.first[name]:.0f} at first, now {value:.0f}")
        for memory in self.memories:
            os.close(memory)
        self.memories = [os.open(f"/proc/{host.ranks()[0]}/root/dev/shm", os.O_RDONLY) for host in self.hosts]
        for host, memory in zip(self.hosts, self.memories):
            runs = [path for path in Path(f"/proc/self/fd/{memory}").glob("*/*")]
            self.expect(len(runs) == 1, f"{host.name} has copies of {len(runs)} runs")
            steps = [path for run in runs for path in run.glob("step_*")]
            self.expect(len(steps) <= 3, f"{host.name} has {len(steps)} copies")  # two, and one in the making

    def look_back(self) -> None:
        """After the end of all hosts."""
        for host, memory in zip(self.hosts, self.memories):
            files = [path for path in Path(f"/proc/self/fd/{memory}").rglob("*") if path.is_file()]
            self.expect(not files, f"{host.name} has files in /dev/shm after the end: {files[:3]}")
            os.close(memory)
            left = host.left.read_text().split() if host.left.exists() else []
            self.expect(not left, f"{host.name} has processes after the end: {left}")
        unfinished = [str(path) for path in self.run.folder.glob("**/.tmp_*")]
        self.expect(not unfinished, f"run.dir has {unfinished[:3]}")

    def summary(self) -> str:
        return ", ".join(f"{name} {self.first[name]:.0f}, at the end {value:.0f}" for name, value in self.newest.items())
