"""A step of a suite, and what it may use: programs of the pack under a time limit, their output in one log."""

import os
import pathlib
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import BinaryIO, Callable


class Failed(Exception):
    """The step found something wrong; the message says what. `output`: of the programs that failed, all of it."""

    def __init__(self, message, output=""):
        super().__init__(message)
        self.output = output


class Skipped(Exception):
    """The step cannot run here; the message says why."""


@dataclass
class Step:
    name: str
    about: str
    limit: int  # seconds
    run: Callable  # of a Context; returns what was compared, in words

@dataclass
class Suite:
    name: str
    limit: int  # seconds, of all steps together
    steps: list[Step]


@dataclass
class Context:
    pack: pathlib.Path
    out: pathlib.Path
    work: pathlib.Path  # for runs of the steps; goes afterwards
    log: BinaryIO
    device: str  # cuda or cpu
    quick: bool
    environment: dict
    suite_deadline: float
    deadline: float = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, name, limit):
        self.deadline = min(self.suite_deadline, time.monotonic() + limit)
        self.log.write(f"\n===== {name} =====\n".encode())

    def left(self):
        return self.deadline - time.monotonic()

    def program(self, name):
        path = self.pack / "bin" / name
        if not path.exists():
            raise Skipped(f"{name} is not in this pack")
        return str(path)

    def need_gpu(self):
        if self.device != "cuda":
            raise Skipped("needs a GPU")

    def run(self, *commands, name="", timeout=None):
        """Runs programs beside one another, each an (arguments, more environment) pair, and returns their outputs.

        Raises Failed unless all end with 0 before the step's time is over; the first that fails ends the others.
        """
        deadline = self.deadline if timeout is None else min(self.deadline, time.monotonic() + timeout)
        processes = [self.start(arguments, more) for arguments, more in commands]
        outputs = [b""] * len(processes)
        readers = [threading.Thread(target=lambda i=i, p=p: outputs.__setitem__(i, p.stdout.read()))
                   for i, p in enumerate(processes)]
        for reader in readers:
            reader.start()
        in_time = self.wait(processes, deadline)
        for process in processes:
            end(process)
        for reader in readers:
            reader.join()
        with self.lock:
            for (arguments, _), text in zip(commands, outputs):
                self.log.write(f"\n--- {name}: {' '.join(map(str, arguments))}\n".encode() + text)
            self.log.flush()
        texts = [text.decode(errors="replace") for text in outputs]
        if not in_time:
            raise Failed(f"{name or commands[0][0][0]}: not done in time, stopped\n{tail(texts)}", "\n".join(texts))
        codes = [process.returncode for process in processes]
        if any(codes):
            raise Failed(f"{name or commands[0][0][0]}: exit code {', '.join(map(str, codes))}\n{tail(texts)}",
                         "\n".join(texts))
        return texts

    def start(self, arguments, more):
        # A session of its own, so that what the program starts ends with it.
        return subprocess.Popen(list(map(str, arguments)), cwd=self.pack, env=self.environment | more, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)

    @staticmethod
    def wait(processes, deadline):
        """False if the time was over first. Comes back early when one has failed: its peers get 15 s to find that."""
        failed_at = None
        while None in [process.poll() for process in processes]:  # a list: each is asked
            now = time.monotonic()
            if failed_at is None and any(process.returncode for process in processes):
                failed_at = now
            if now > deadline:
                return False
            if failed_at is not None and now > failed_at + 15:
                return True
            time.sleep(0.02)
        return True


def end(process):
    """Ends it with its children, which may hold its output open after it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def tail(texts, lines=12):
    """The last lines of each output that has some."""
    return "\n...\n".join("\n".join(text.strip().splitlines()[-lines:]) for text in texts if text.strip())
