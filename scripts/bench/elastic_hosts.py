"""Hosts that this machine imitates for scripts/elastic.sh: namespaces for network, mounts (each its own /dev/shm) and processes.

Needs root, iproute2 and the Python torch.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NETWORK = "10.78.0"
PORT = 29511


def why_not() -> str:
    """What is missing here; "" if nothing is."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        return "needs root and iproute2"
    works = sh("ip netns add elastic_probe && unshare --uts --mount --pid --fork true; echo $?", check=False).strip() == "0"
    sh("ip netns delete elastic_probe", check=False)
    return "" if works else "needs namespaces"


def sh(command: str, check: bool = True) -> str:
    return subprocess.run(command, shell=True, check=check, capture_output=True, text=True).stdout


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def wait(condition, what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(0.005)


class Host:
    """A network namespace on a bridge, and in it, while it lives, elastic.sh, alone with its processes."""

    def __init__(self, number: int, count: int, command: list[str], folder: Path, environment: dict[str, str]):
        self.number, self.count, self.command, self.folder, self.environment = number, count, command, folder, environment
        self.space, self.address = f"elastic{number}", f"{NETWORK}.{number}"
        self.script = None
        self.remove()  # what a killed test has left
        sh(f"ip netns add {self.space} && ip link add {self.space} type veth peer name eth0 netns {self.space}")
        sh(f"ip link set {self.space} master elastic0 up && ip -n {self.space} address add {self.address}/24 dev eth0")
        sh(f"ip -n {self.space} link set lo up && ip -n {self.space} link set eth0 up")
        sh(f"ip -n {self.space} route add default via {NETWORK}.254")

    def start(self) -> None:
        names = self.folder / "hosts"
        names.write_text("127.0.0.1 localhost\n" + "".join(f"{NETWORK}.{i} elastic{i}\n" for i in range(1, self.count + 1)))
        switch = self.folder / "nsswitch.conf"  # no name server answers here, and each question would take 5 s
        switch.write_text("passwd: files\nhosts: files\n")
        inside = (f"hostname {self.space} && mount -t tmpfs tmpfs /dev/shm && mount --bind {names} /etc/hosts && "
                  f"mount --bind {switch} /etc/nsswitch.conf && exec " + " ".join(self.command))
        with open(self.folder / f"{self.space}.log", "a") as log:
            self.script = subprocess.Popen(["ip", "netns", "exec", self.space, "unshare", "--uts", "--mount", "--pid", "--fork",
                                            "--kill-child", "--mount-proc", "sh", "-c", inside], stdout=log, stderr=log,
                                           cwd=self.folder, env=os.environ | self.environment)

    def pids(self) -> list[int]:
        return [int(pid) for pid in sh(f"ip netns pids {self.space}", check=False).split()]

    def ranks(self) -> list[int]:
        return [pid for pid in self.pids() if name_of(pid) == "pptrain"]

    def agents(self) -> list[int]:
        return [pid for pid in self.pids() if name_of(pid) in ("torchrun", "pt_elastic")]

    def has_store(self) -> bool:
        return sh(f"ip netns exec {self.space} ss -ltnH 'sport = :{PORT}'", check=False).strip() != ""

    def cut(self, plugged: bool = False) -> None:
        """Pulls the cable, or plugs it in again."""
        sh(f"ip link set {self.space} {'up' if plugged else 'down'}")

    def die(self) -> None:
        """With its memory, which goes with its namespace of mounts."""
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self.script:
            self.script.wait()
        self.script = None

    def remove(self) -> None:
        self.die()
        self.clear()

    def clear(self) -> None:
        sh(f"ip netns delete {self.space}; ip link delete {self.space}", check=False)


class Hosts:
    """Hosts on one bridge, for the time of a with statement. Each runs elastic.sh with these settings of a job."""

    def __init__(self, count: int, least: int, processes: int, pptrain: Path, job: Path, settings: list[str], folder: Path, torchrun: str):
        names = ",".join(f"{NETWORK}.{i}" for i in range(1, count + 1))
        self.command = [str(ROOT / "scripts/elastic.sh"), names, str(least), str(job.resolve()), "--processes", str(processes), "--port", str(PORT),
                        *(word for s in settings for word in ("--set", f"'{s}'"))]
        self.environment = {"OMP_NUM_THREADS": "1", "PPTRAIN": str(pptrain.resolve()), "TORCHRUN": torchrun}
        self.count, self.folder = count, folder
        self.hosts: list[Host] = []

    def __enter__(self) -> list[Host]:
        sh("ip link delete elastic0", check=False)
        sh(f"ip link add elastic0 type bridge && ip address add {NETWORK}.254/24 dev elastic0 && ip link set elastic0 up")
        for number in range(1, self.count + 1):
            self.hosts.append(Host(number, self.count, self.command, self.folder, self.environment))
        for host in self.hosts:
            host.start()
        return self.hosts

    def __exit__(self, *_) -> None:
        for host in self.hosts:
            host.remove()
        sh("ip link delete elastic0", check=False)


class Run:
    """The job's folder, as it grows."""

    def __init__(self, folder: Path):
        self.folder, self.metrics, self.log = folder, folder / "metrics.jsonl", folder / "log.txt"

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

    def resumed_at(self) -> int:
        """The step of the newest start."""
        starts = [json.loads(line) for line in self.metrics.read_text().splitlines() if '"start"' in line]
        return starts[-1]["step"]
