"""A step of a suite, and its tools: programs of the pack under a time limit, with their output in one log."""

import contextlib
import os
import pathlib
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import BinaryIO, Callable

DYING = 10  # seconds for a killed process to end


class Failed(Exception):
    """The step found an error; the message names it. `output`: the complete output of the failed programs."""

    def __init__(self, message, output=""):
        super().__init__(message)
        self.output = output


class NotRun(Exception):
    """The step cannot run here; the message says why."""


@dataclass
class Parts:
    """Parts of a step. Each part runs and reports even if others fail."""

    failures: dict = field(default_factory=dict)  # name -> message
    passed: list = field(default_factory=list)  # names

    @contextlib.contextmanager
    def part(self, name):
        try:
            yield
            self.passed.append(name)
        except Failed as failure:
            self.failures[name] = str(failure)
        except (OSError, ValueError, KeyError) as error:  # a file that a program should have left, say
            self.failures[name] = f"{type(error).__name__}: {error}"

    def check(self):
        """Raises Failed if a part has failed."""
        if self.failures:
            names = f"failed: {', '.join(self.failures)}; passed: {', '.join(self.passed) or 'none'}"
            raise Failed("\n".join([names, *(f"{name}: {text}" for name, text in self.failures.items())]))


@dataclass
class Step:
    name: str
    about: str
    limit: int  # seconds
    run: Callable  # takes a Context; returns what was compared, in words
    advice: str  # what to do when it fails
    last: bool = False  # if several suites run: after all of them


@dataclass
class Suite:
    name: str
    steps: list[Step]  # the most valuable first

    @property
    def limit(self):
        """Seconds of all steps together: each step is sure to have its own, whatever the others do."""
        return sum(step.limit for step in self.steps)


@dataclass
class Context:
    pack: pathlib.Path
    out: pathlib.Path
    work: pathlib.Path  # for runs of the steps; removed afterwards
    log: BinaryIO
    device: str  # cuda or cpu
    quick: bool
    environment: dict
    deadline: float = 0  # of the running step
    figures: dict = field(default_factory=dict)  # the benchmark's, for the report
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, name, deadline):
        self.deadline = deadline
        self.log.write(f"\n===== {name} =====\n".encode())

    def left(self):
        return self.deadline - time.monotonic()

    def program(self, name):
        path = self.pack / "bin" / name
        if not path.exists():
            raise NotRun(f"{name} is not in this pack")
        return str(path)

    def need_gpu(self):
        if self.device != "cuda":
            raise NotRun("needs a GPU")

    def run(self, *commands, name="", timeout=None, spare=False):
        """Runs programs at the same time, each an (arguments, additional environment) pair, and returns their outputs.

        Raises Failed unless all end with 0 before the step's time, or `timeout` seconds, are over; the first that fails
        ends the others. `spare`: allows a second's work after the time is over, such as writing the figures.
        """
        deadline = self.deadline if timeout is None else min(self.deadline, time.monotonic() + timeout)
        deadline = max(deadline, time.monotonic() + DYING) if spare else deadline
        if time.monotonic() >= deadline:
            raise Failed(f"{name or commands[0][0][0]}: not started, the step's time was over")
        processes = [self.start(arguments, more) for arguments, more in commands]
        outputs = [bytearray() for _ in processes]
        readers = [threading.Thread(target=read, args=(process.stdout, output), daemon=True)
                   for process, output in zip(processes, outputs)]
        for reader in readers:
            reader.start()
        in_time = self.wait(processes, deadline)
        ended = [end(process) for process in processes]  # a list: each is ended
        for reader, process in zip(readers, processes):
            reader.join(DYING)
            if not reader.is_alive():
                process.stdout.close()
        with self.lock:
            for (arguments, _), text in zip(commands, outputs):
                self.log.write(f"\n--- {name}: {' '.join(map(str, arguments))}\n".encode() + text)
            self.log.flush()
        texts = [text.decode(errors="replace") for text in outputs]
        if not in_time:
            stopped = "stopped" if all(ended) else f"and did not end within {DYING} s of being killed"
            raise Failed(f"{name or commands[0][0][0]}: not done in time, {stopped}\n{tail(texts)}", "\n".join(texts))
        codes = [process.returncode for process in processes]
        if any(codes):
            raise Failed(f"{name or commands[0][0][0]}: exit code {', '.join(map(str, codes))}\n{tail(texts)}",
                         "\n".join(texts))
        return texts

    def start(self, arguments, more):
        # A session of its own, so that the program's children end with it.
        return subprocess.Popen(list(map(str, arguments)), cwd=self.pack, env=self.environment | more, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)

    @staticmethod
    def wait(processes, deadline):
        """False if the time was over first. Returns early if one has failed: its peers get 15 s to notice."""
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


def read(pipe, output):
    """Reads the pipe piece by piece, so that the output so far is kept even if its end never comes."""
    while piece := pipe.read1():
        output += piece


def end(process):
    """Ends the process with its children, which may hold its output open. False if it does not end, as when it waits in
    a driver: then it is left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        process.wait(DYING)
    except subprocess.TimeoutExpired:
        return False
    return True


def tail(texts, lines=12):
    """The last lines of each output that has some."""
    return "\n...\n".join("\n".join(text.strip().splitlines()[-lines:]) for text in texts if text.strip())
