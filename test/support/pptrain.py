"""Shared by the Python tests of the program: a tiny job, functions to start and wait, and readers of a run's results.

The program starts as from a user's shell, on any machine and under any launcher of the tests.
"""

import atexit
import collections
import contextlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TEXT = SOURCE / "configs/data/tinyshakespeare.txt"
LAUNCHERS = ("OMPI_", "PMI_", "PMIX_", "SLURM_", "TORCHELASTIC_")
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def environment(**extra):
    """This process's environment without a launcher's variables, one thread a rank, and `extra` as text.

    Open MPI then starts more ranks than there are cores, also as root, and binds none to a core that another one uses.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS) and name not in TORCHRUN}
    env.update(OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
               OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_hwloc_base_binding_policy="none")
    env.update({name: str(value) for name, value in extra.items()})
    return env


def rank_environment(rank, ranks, port, address="127.0.0.1", **extra):
    """environment() of one of `ranks` processes that meet at `address`, as torchrun would start it."""
    return environment(RANK=rank, WORLD_SIZE=ranks, LOCAL_RANK=rank, MASTER_ADDR=address, MASTER_PORT=port, **extra)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def is_open_mpi(mpiexec):
    """Also False if `mpiexec` is "", as in a build without MPI."""
    if not mpiexec:
        return False
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True).stdout
    return "Open MPI" in version or "OpenRTE" in version


def mpi_command(mpiexec, ranks):
    """The command that starts that many ranks with pptrain's MPI, even on fewer cores."""
    return [mpiexec, *(["--oversubscribe"] if is_open_mpi(mpiexec) else []), "-n", str(ranks)]


TINY = {
    "model": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 256},
    "distributed": {"pp": 2},
    "train": {"steps": 4, "seq_len": 16, "micro_batch_size": 2, "grad_accum_steps": 4},
    "data": {"path": str(TEXT)},
    "lr_schedule": {"warmup_steps": 2},
    "metrics": {"peak_tflops": 1},  # otherwise every start measures it
}


def in_toml(defaults, sections):
    """The defaults as TOML with other or more keys; a section that is None is removed."""
    lines = []
    for name in dict.fromkeys([*defaults, *sections]):
        keys = sections.get(name, {})
        if keys is not None:
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in {**defaults.get(name, {}), **keys}.items())]
    return "\n".join(lines) + "\n"


def job(**sections):
    """TINY with other or more keys, `train={"steps": 9}`."""
    return in_toml(TINY, sections)


def hf_job(folder, hf, **sections):
    """Two steps from the weights of the Hugging Face directory `hf`, on the ids (uint16) in folder/tokens.bin."""
    defaults = {
        "run": {"dir": f"{folder}/run"},
        "model": {"hf_dir": str(hf), "init": "hf"},
        "train": {"steps": 2, "seq_len": 16, "micro_batch_size": 2, "grad_accum_steps": 2, "dtype": "fp32"},
        "optimizer": {"lr": 0.01},
        "data": {"path": f"{folder}/tokens.bin", "format": "bin"},
        "metrics": {"peak_tflops": 1},
    }
    return in_toml(defaults, sections)


def sets(*settings):
    return [word for setting in settings for word in ("--set", setting)]


def start(command, cwd, stderr=subprocess.PIPE, env=None, **options):
    """Starts a command with its output in pipes, in environment() unless another is given."""
    return subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=cwd,
                            env=env or environment(), **options)


def of_loading(env):
    """The variables that may act before main(): of the dynamic linker, glibc, sanitizers and the libraries below LibTorch."""
    return {name: value for name, value in env.items()
            if name.startswith(("LD_", "GLIBC_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_")) or name.endswith("SAN_OPTIONS")}


class Forked:
    """A command of a program that is loaded once and forked for each (loaded_pptrain.cpp): a third of the time of a start.

    Its process has the arguments, folder and environment of a separate start. Its parent, group and session are the server's,
    and so is what /proc says of its command and environment: who tests these takes `own_start`. An object has what tests use
    of subprocess.Popen; the output can be read when the process has ended. Needs Linux 5.3.
    """

    _servers = {}  # (socket, process) by the program's path
    _lock = threading.Lock()

    def __init__(self, command, cwd, env):
        self.args, self.returncode, self._said = command, None, None
        self._output = [tempfile.TemporaryFile() for _ in range(2)]
        self._answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        texts = [os.path.abspath(cwd or "."), len(command), *command, *(f"{name}={value}" for name, value in env.items())]
        program = pathlib.Path(command[0]).with_name("loaded_pptrain")
        try:
            with theirs, open(os.devnull) as nothing:
                socket.send_fds(self.server(program), ["".join(f"{text}\0" for text in texts).encode()],
                                [file.fileno() for file in (nothing, *self._output, theirs)])
            self.pid = self._answer()
        except (AssertionError, OSError):
            self.forget_if_ended(program)
            raise

    @classmethod
    def serves(cls, command, env):
        """Also false if `env` changes what acts while a program is loaded."""
        name = pathlib.Path(command[0])
        return name.name == "pptrain" and name.with_name("loaded_pptrain").exists() and of_loading(env) == of_loading(environment())

    @classmethod
    def server(cls, program):
        """The socket for requests to `program`, which ends with this process."""
        with cls._lock:
            if program not in cls._servers:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    cls._servers[program] = ours, subprocess.Popen([program, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                                                                   env=environment(), stdin=subprocess.DEVNULL, start_new_session=True)
            return cls._servers[program][0]

    @classmethod
    def forget_if_ended(cls, program):
        """The next command then starts another server."""
        with cls._lock:
            if program in cls._servers and cls._servers[program][1].poll() is not None:
                cls._servers.pop(program)[0].close()

    @classmethod
    def end_servers(cls):
        for ours, server in cls._servers.values():
            ours.close()
            server.wait()

    def _answer(self):
        answer = self._answers.recv(4)
        if len(answer) != 4:
            raise AssertionError(f"loaded_pptrain ended without an answer: {self.args}")
        return int.from_bytes(answer, sys.byteorder)

    def wait(self, timeout=None):
        if self.returncode is None:
            self._answers.settimeout(timeout)
            try:
                self.returncode = os.waitstatus_to_exitcode(self._answer())
            except (TimeoutError, BlockingIOError):  # the latter with a timeout of 0
                raise subprocess.TimeoutExpired(self.args, timeout)
            self._answers.close()
        return self.returncode

    def poll(self):
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def communicate(self, timeout=None):
        self.wait(timeout)
        if self._said is None:
            self._said = tuple(file.seek(0) or file.read().decode(errors="replace") for file in self._output)
            for file in self._output:
                file.close()
        return self._said

    def send_signal(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ends just now
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


atexit.register(Forked.end_servers)


def run(command, cwd, code=0, timeout=300, env=None, own_start=False, **options):
    """The finished command's output; it must end with `code` (None: any). `own_start`: not forked from a loaded program."""
    command = [str(word) for word in command]
    env = env or environment()
    if not own_start and not options and Forked.serves(command, env):
        process = Forked(command, cwd, env)
        try:
            out, err = process.communicate(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        done = subprocess.CompletedProcess(command, process.returncode, out, err)
    else:
        if "input" not in options:
            options["stdin"] = subprocess.DEVNULL
        done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=timeout, env=env, **options)
    if code not in (None, done.returncode):
        raise AssertionError(f"exit code {done.returncode} in place of {code}: {command}\n{done.stdout}\n{done.stderr}")
    return done


def run_line(line, program, cwd, **options):
    """As run(), of a line for a shell. If it is a command of pptrain with words alone, `program` runs it without a shell."""
    words = shlex.split(line)
    plain = pathlib.Path(words[0]).name == "pptrain" and not set(line) & set("|&;<>()$`*?[]{}~#\n")
    if plain:
        return run([program, *words[1:]], cwd, **options)
    return run(["bash", "-c", line], cwd, errors="replace", **options)


def start_ranks(commands, cwd, own_start=False, **extra):
    """Starts one process for each command, with `own_start` as children of this one, as a launcher's; they meet over TCP."""
    port = free_port()

    def start_rank(rank, command):
        command, env = [str(word) for word in command], rank_environment(rank, len(commands), port, **extra)
        return Forked(command, cwd, env) if not own_start and Forked.serves(command, env) else start(command, cwd, env=env)
    return [start_rank(rank, command) for rank, command in enumerate(commands)]


def wait_for(condition, seconds, what, pause=0.01):
    """`what`: a text for the failure, or a function that gives one."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what() if callable(what) else what}")
        time.sleep(pause)


def records(run_dir):
    """The records of metrics.jsonl without an incomplete last line."""
    file = run_dir / "metrics.jsonl"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]


def steps(run_dir):
    return [record for record in records(run_dir) if "grad_norm" in record]


def wait_for_steps(processes, run_dir, count, seconds=60):
    """Fails if a process ends before `count` steps are recorded."""
    def reached():
        for process in processes:
            if process.poll() is not None:
                raise AssertionError(f"ended before step {count}: {process.communicate()}")
        return len(steps(run_dir)) >= count
    wait_for(reached, seconds, f"{count} steps in {run_dir}")


def manifest(checkpoint):
    return json.loads((checkpoint / "manifest.json").read_text())


def checksums(checkpoint):
    """The checksums of every tensor's slices, in the order of the manifest, by file and name."""
    found = collections.defaultdict(str)
    for stored in manifest(checkpoint)["files"]:
        for name, tensor in stored["tensors"].items():
            found[f"{stored['file']}/{name}"] += tensor["xxh3_128"]
    return dict(found)


def latest(run_dir):
    """The checkpoint that the file `latest` names."""
    return run_dir / "checkpoints" / (run_dir / "checkpoints/latest").read_text().strip()


def temporary_folder(add_cleanup):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pptrain_test_")).resolve()
    add_cleanup(shutil.rmtree, folder, ignore_errors=True)
    return folder


class Case(unittest.TestCase):
    """A test with its own folder."""

    def setUp(self):
        self.folder = temporary_folder(self.addCleanup)
