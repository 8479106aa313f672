"""Hosts that this machine imitates for scripts/elastic.sh: namespaces for network, mounts (each its own /dev/shm) and processes.

They are named after this process, and their bridge is in a namespace too, so several programs have hosts at the same time. Needs root,
iproute2 and the Python torch.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NETWORK = "10.78.0"
PORT = 29511
PREFIX = "elastic_"
BRIDGE = f"{PREFIX}{os.getpid()}_0"


def why_not() -> str:
    """What is missing here; "" if nothing is."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        return "needs root and iproute2"
    works = sh(f"ip netns add {BRIDGE} && unshare --uts --mount --pid --fork true; echo $?", check=False).strip() == "0"
    sh(f"ip netns delete {BRIDGE}", check=False)
    return "" if works else "needs namespaces"


def sh(command: str, check: bool = True) -> str:
    return subprocess.run(command, shell=True, check=check, capture_output=True, text=True).stdout


def name_of(pid: int) -> str:
    """Of a process that lives; "" if it has ended, also while its parent has not noticed."""
    try:
        name, state = re.fullmatch(r"\d+ \((.*)\) (\w).*", Path(f"/proc/{pid}/stat").read_text(), re.DOTALL).groups()
    except OSError:
        return ""
    return "" if state in "XZ" else name


def wait(condition, what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(0.01)


def kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def remove(space: str) -> None:
    """A namespace, with what runs in it."""
    kill([int(pid) for pid in sh(f"ip netns pids {space}", check=False).split()])
    sh(f"ip netns delete {space}", check=False)


def descendants(pid: int) -> list[int]:
    """Without other programs, which would take the time that is measured; no thread but the main one has children here."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [process for child in children for process in (child, *descendants(child))]


class Host:
    """A network namespace on the bridge, and in it, while it lives, elastic.sh, alone with its processes."""

    def __init__(self, number: int, count: int, command: list[str], folder: Path, environment: dict[str, str]):
        self.number, self.count, self.command, self.folder, self.environment = number, count, command, folder, environment
        self.space, self.name, self.address = f"{PREFIX}{os.getpid()}_{number}", f"elastic{number}", f"{NETWORK}.{number}"
        self.left = folder / f"{self.name}.left"  # processes that have outlived elastic.sh
        self.script = None
        sh(f"ip netns add {self.space} && ip link add {self.name} netns {BRIDGE} type veth peer name eth0 netns {self.space}")
        sh(f"ip -n {BRIDGE} link set {self.name} master bridge up && ip -n {self.space} address add {self.address}/24 dev eth0")
        sh(f"ip -n {self.space} link set lo up && ip -n {self.space} link set eth0 up")
        sh(f"ip -n {self.space} route add default via {NETWORK}.254")

    def start(self) -> None:
        names = self.folder / "hosts"
        names.write_text("127.0.0.1 localhost\n" + "".join(f"{NETWORK}.{i} elastic{i}\n" for i in range(1, self.count + 1)))
        switch = self.folder / "nsswitch.conf"  # no name server answers here, and each question would take 5 s
        switch.write_text("passwd: files\nhosts: files\n")
        inside = (f"hostname {self.name} && mount -t tmpfs tmpfs /dev/shm && mount --bind {names} /etc/hosts && "
                  f"mount --bind {switch} /etc/nsswitch.conf || exit; " + " ".join(self.command) + "; code=$?; "
                  f"cat /proc/[0-9]*/comm | grep -x -e pptrain -e torchrun -e pt_elastic >>{self.left}; exit $code")
        with open(self.folder / f"{self.name}.log", "a") as log:
            self.script = subprocess.Popen(["ip", "netns", "exec", self.space, "unshare", "--uts", "--mount", "--pid", "--fork",
                                            "--kill-child", "--mount-proc", "sh", "-c", inside], stdout=log, stderr=log,
                                           cwd=self.folder, env=os.environ | self.environment)

    def pids(self) -> list[int]:
        return descendants(self.script.pid) if self.script else []

    def ranks(self) -> list[int]:
        return [pid for pid in self.pids() if name_of(pid) == "pptrain"]

    def agents(self) -> list[int]:
        return [pid for pid in self.pids() if name_of(pid) in ("torchrun", "pt_elastic")]

    def has_store(self) -> bool:
        return sh(f"ip netns exec {self.space} ss -ltnH 'sport = :{PORT}'", check=False).strip() != ""

    def cut(self, plugged: bool = False) -> None:
        """Pulls the cable, or plugs it in again."""
        sh(f"ip -n {BRIDGE} link set {self.name} {'up' if plugged else 'down'}")

    def die(self) -> None:
        """With its memory, which goes with its namespace of mounts."""
        if self.script:
            kill([*self.pids(), self.script.pid])
            self.script.wait()
        self.script = None


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
        for space in re.findall(rf"^{PREFIX}\d+_\d+", sh("ip netns list"), re.MULTILINE):
            if not Path(f"/proc/{space.split('_')[1]}").exists():
                remove(space)  # what a killed program has left
        sh(f"ip netns add {BRIDGE} && ip -n {BRIDGE} link add bridge type bridge && "
           f"ip -n {BRIDGE} address add {NETWORK}.254/24 dev bridge && ip -n {BRIDGE} link set bridge up")
        for number in range(1, self.count + 1):
            self.hosts.append(Host(number, self.count, self.command, self.folder, self.environment))
        for host in self.hosts:
            host.start()
        return self.hosts

    def __exit__(self, *_) -> None:
        for host in self.hosts:
            host.die()
            remove(host.space)
        remove(BRIDGE)


class Run:
    """The job's folder, as it grows."""

    def __init__(self, folder: Path):
        self.folder, self.metrics, self.log = folder, folder / "metrics.jsonl", folder / "log.txt"
        self.counted, self.read = 0, 0  # of the log

    def records(self, newest: int = 1 << 40) -> list[dict]:
        """All records, or those that are whole within the newest bytes."""
        if not self.metrics.exists():
            return []
        with self.metrics.open("rb") as file:
            begin = max(0, file.seek(0, os.SEEK_END) - newest)
            file.seek(begin)
            lines = file.read().split(b"\n")[begin > 0:-1]
        return [json.loads(line) for line in lines]

    def steps(self) -> list[int]:
        return [record["step"] for record in self.records() if "grad_norm" in record]

    def last_step(self) -> int:
        return max((record["step"] for record in self.records(1 << 16) if "grad_norm" in record), default=0)

    def resumes(self) -> int:
        """How often the run has been resumed."""
        if self.log.exists():
            with self.log.open() as file:
                file.seek(self.read)
                text = file.read()
            whole = text[:text.rfind("\n") + 1]
            self.read += len(whole.encode())
            self.counted += whole.count("resumed from")
        return self.counted

    def start(self) -> dict:
        """The header of the newest start."""
        return [record for record in self.records() if "start" in record][-1]
