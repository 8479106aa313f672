"""What a restart takes when a rank or a host dies under torchrun, part by part.

    sudo .venv/bin/python scripts/bench/elastic_times.py [--pptrain build/pptrain] [--kills 5] [--kinds rank host] [--markdown]

This machine imitates two hosts: namespaces for network, mounts (each its own /dev/shm) and processes. An agent of torchrun on each starts
two processes for the four ranks of the default job. Between kills the job makes new steps; checkpoints lie on disk. A host that died comes
back before the next kill. The parts of a restart, each from the end of the one before:

    found      the other ranks have ended
    torchrun   new processes of ranks have started
    start      they have met and resumed from the checkpoint
    step       metrics.jsonl has a step that was not there before

Needs root, iproute2 and the Python torch; ends with status 2 otherwise.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NETWORK = "10.78.0"
PORT = 29511
HOSTS = 2
RANKS = 2  # processes of a host
PARTS = ("found", "torchrun", "start", "step")


def sh(command: str, check: bool = True) -> str:
    return subprocess.run(command, shell=True, check=check, capture_output=True, text=True).stdout


class Host:
    """A network namespace on a bridge, and in it, while it lives, an agent that is alone with its processes."""

    def __init__(self, number: int, command: list[str], folder: Path):
        self.number, self.command, self.folder = number, command, folder
        self.space = f"elastic{number}"
        self.clear()
        sh(f"ip netns add {self.space} && ip link add {self.space} type veth peer name eth0 netns {self.space}")
        sh(f"ip link set {self.space} master elastic0 up && ip -n {self.space} address add {NETWORK}.{number}/24 dev eth0")
        sh(f"ip -n {self.space} link set lo up && ip -n {self.space} link set eth0 up")
        sh(f"ip -n {self.space} route add default via {NETWORK}.254")

    def start(self) -> None:
        hosts = self.folder / "hosts"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{NETWORK}.{i} elastic{i}\n" for i in range(1, HOSTS + 1)))
        switch = self.folder / "nsswitch.conf"  # no name server answers here, and each question would take 5 s
        switch.write_text("passwd: files\nhosts: files\n")
        inside = (f"hostname {self.space} && mount -t tmpfs tmpfs /dev/shm && mount --bind {hosts} /etc/hosts && "
                  f"mount --bind {switch} /etc/nsswitch.conf && exec "
                  + " ".join([*self.command[:3], "--local-addr", f"{NETWORK}.{self.number}", *self.command[3:]]))
        log = open(self.folder / f"{self.space}.log", "a")
        self.agent = subprocess.Popen(["ip", "netns", "exec", self.space, "unshare", "--uts", "--mount", "--pid", "--fork",
                                       "--kill-child", "--mount-proc", "sh", "-c", inside], stdout=log, stderr=log, cwd=self.folder,
                                      env=os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"})

    def pids(self) -> list[int]:
        return [int(pid) for pid in sh(f"ip netns pids {self.space}", check=False).split()]

    def ranks(self) -> list[int]:
        return [pid for pid in self.pids() if name_of(pid) == "pptrain"]

    def die(self) -> None:
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.agent.wait()

    def remove(self) -> None:
        self.die()
        self.clear()

    def clear(self) -> None:
        sh(f"ip netns delete {self.space}; ip link delete {self.space}", check=False)


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


class Run:
    """The job's folder, as it grows."""

    def __init__(self, folder: Path):
        self.metrics, self.log = folder / "metrics.jsonl", folder / "log.txt"

    def steps(self) -> list[int]:
        if not self.metrics.exists():
            return []
        text = self.metrics.read_text()
        records = [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]
        return [record["step"] for record in records if "grad_norm" in record]

    def last_step(self) -> int:
        return max(self.steps(), default=0)

    def resumes(self) -> int:
        return self.log.read_text().count("resumed from") if self.log.exists() else 0


def wait(condition, what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {seconds} s: {what}")
        time.sleep(0.005)


def trial(kind: str, hosts: list[Host], run: Run, draw: random.Random) -> dict:
    """Kills a rank or a host, and takes the times of what follows."""
    before = run.last_step()
    wait(lambda: run.last_step() >= before + 3, "three steps")
    old = {pid for host in hosts for pid in host.ranks()}
    reached, resumes, start = run.last_step(), run.resumes(), time.monotonic()
    victim = draw.choice(hosts[1:] if kind == "host" else hosts)  # the first host has torchrun's store
    if kind == "host":
        victim.die()
    else:
        os.kill(draw.choice(victim.ranks()), signal.SIGKILL)
    times, at = {}, start

    def mark(part: str, condition) -> None:
        nonlocal at
        wait(condition, part)
        now = time.monotonic()
        times[part], at = now - at, now

    mark("found", lambda: not any(name_of(pid) == "pptrain" for pid in old))
    mark("torchrun", lambda: any(host.ranks() for host in hosts))
    mark("start", lambda: run.resumes() > resumes)
    mark("step", lambda: run.last_step() > reached)
    times["all"] = at - start
    if kind == "host":
        victim.start()
        wait(lambda: all(len(host.ranks()) == RANKS for host in hosts), "the host's return")
        wait(lambda: run.resumes() > resumes + 1, "a start with both hosts")
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pptrain", type=Path, default=ROOT / "build/pptrain")
    parser.add_argument("--job", type=Path, default=ROOT / "configs/shakespeare.toml")
    parser.add_argument("--kills", type=int, default=5, help="of each kind")
    parser.add_argument("--kinds", nargs="+", default=["rank", "host"], choices=["rank", "host"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("ip"):
        print("elastic_times.py needs root and iproute2", file=sys.stderr)
        sys.exit(2)
    settings = ["distributed.pp=2", "distributed.dp_shard=2", "train.grad_accum_steps=4", "distributed.heartbeat_s=3",
                "train.steps=1000000", "checkpoint.interval=5", "checkpoint.keep_last_n=2", "eval.interval=0",
                "eval.generate_interval=0", "metrics.peak_tflops=1", "run.dir=run"]
    rendezvous = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3,read_timeout=30"
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", f"1:{HOSTS}", "--nproc-per-node", str(RANKS),
               "--max-restarts", "1000000", "--monitor-interval", "0.1", "--rdzv-backend", "c10d", "--rdzv-id", "elastic",
               "--rdzv-endpoint", f"{NETWORK}.1:{PORT}", "--rdzv-conf", rendezvous, "--no-python", str(arguments.pptrain.resolve()),
               "--config", str(arguments.job.resolve()), *(word for s in settings for word in ("--set", s))]
    draw = random.Random(arguments.seed)
    hosts: list[Host] = []
    results: dict[str, list[dict]] = {kind: [] for kind in arguments.kinds}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as folder:
        try:
            sh(f"ip link add elastic0 type bridge && ip address add {NETWORK}.254/24 dev elastic0 && ip link set elastic0 up")
            for number in range(1, HOSTS + 1):
                hosts.append(Host(number, command, Path(folder)))
            for host in hosts:
                host.start()
            run = Run(Path(folder) / "run")
            wait(lambda: run.last_step() > 10, "steps and a checkpoint")
            for _ in range(arguments.kills):
                for kind in arguments.kinds:
                    results[kind].append(trial(kind, hosts, run, draw))
                    print(kind, {part: round(t, 2) for part, t in results[kind][-1].items()}, file=sys.stderr, flush=True)
        finally:
            for log in sorted(Path(folder).glob("*.log")) if sys.exc_info()[0] else []:
                print(log.name, log.read_text()[:1200], file=sys.stderr)
            for host in hosts:
                host.remove()
            sh("ip link delete elastic0", check=False)
    columns = (*PARTS, "all")
    line = "| {:4} | " + " | ".join(["{:>8}"] * len(columns)) + " | {:>8} |" if arguments.markdown else "{:4}" + "  {:>8}" * (len(columns) + 1)
    print(line.format("", *columns, "most"))
    if arguments.markdown:
        print("|---|" + "---:|" * (len(columns) + 1))
    for kind, trials in results.items():
        medians = [f"{statistics.median(t[part] for t in trials):.2f}" for part in columns]
        print(line.format(kind, *medians, f"{max(t['all'] for t in trials):.2f}"))


if __name__ == "__main__":
    main()
