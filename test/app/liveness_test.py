"""Real processes that are killed, stopped, suspended or cut off while they train: the others end in time and say why.

Usage: liveness_test.py PPTRAIN MPIEXEC [unittest arguments]; MPIEXEC is "" in a build without MPI

PPTRAIN_LIVENESS_TRIALS=40 makes so many trials of each transport and signal, and prints how long the others took.
"""

import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from pptrain import Case, environment, free_port, job, mpi_command, rank_environment, sets, steps, wait_for  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
MPIEXEC = sys.argv.pop(1)
TRIALS = int(os.environ.get("PPTRAIN_LIVENESS_TRIALS", "1"))
SEED = int(os.environ.get("PPTRAIN_LIVENESS_SEED", random.randrange(10**6)))
RANKS = 3
LIMIT = 10  # seconds until all other ranks must have ended

JOB = job(model={"num_hidden_layers": 6, "num_key_value_heads": 2}, distributed={"pp": RANKS},
          train={"steps": 1000000, "seq_len": 64}, data={"val_fraction": 0.2}, eval={"interval": 10, "batches": 2},
          checkpoint={"interval": 40})

with_mpi = unittest.skipUnless(MPIEXEC, "built without MPI")
as_root = unittest.skipUnless(os.geteuid() == 0 and shutil.which("ip"), "network namespaces need root and ip")


def state(pid):
    """R, S, T (stopped), Z ... as in proc(5); "" if there is no such process."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def lives(pid):
    return state(pid) not in ("", "Z", "X")


class Job:
    """A training run of RANKS processes. `pids` is by rank."""

    def __init__(self, folder, *settings):
        self.folder = folder
        (folder / "job.toml").write_text(JOB)
        self.command = [str(PPTRAIN), "--config", str(folder / "job.toml"), *sets(f'run.dir="{folder}/run"', *settings)]
        self.processes = []
        self.outputs = []

    def launch(self, command, name, env):
        self.outputs.append(open(self.folder / f"{name}.out", "w+"))
        process = subprocess.Popen(command, stdout=self.outputs[-1], stderr=subprocess.STDOUT, cwd=self.folder,
                                   env=env, start_new_session=True)
        self.processes.append(process)
        return process

    def steps(self):
        return len(steps(self.folder / "run"))

    def wait_for_steps(self, more):
        wanted = self.steps() + more
        wait_for(lambda: self.steps() >= wanted or self.ended(), 120, f"{wanted} steps")
        if self.ended():
            raise AssertionError(f"ended too early:\n{self.output()}")

    def ended(self):
        return all(process.poll() is not None for process in self.processes)

    def others_gone(self, victim):
        for process in self.processes:
            process.poll()
        return not any(lives(pid) for rank, pid in self.pids().items() if rank != victim)

    def output(self):
        for output in self.outputs:
            output.flush()
        return "\n".join(f"--- {pathlib.Path(o.name).name}\n{pathlib.Path(o.name).read_text()}" for o in self.outputs)

    def messages(self):
        """The messages of pptrain about ranks, in all outputs."""
        return re.findall(r"pptrain: (?:rank \d+|stopped).*", self.output())

    def close(self):
        for pid in [*self.pids().values(), *(p.pid for p in self.processes)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        for process in self.processes:
            process.wait()
        for output in self.outputs:
            output.close()


class TcpJob(Job):
    def start(self, ranks=range(RANKS), prefix=lambda rank: [], address="127.0.0.1"):
        port = free_port()
        for rank in ranks:
            self.launch([*prefix(rank), *self.command], f"rank_{rank}", rank_environment(rank, RANKS, port, address))
        return self

    def pids(self):
        return {rank: process.pid for rank, process in enumerate(self.processes)}


class MpiJob(Job):
    known = None

    def start(self):
        self.launch([*mpi_command(MPIEXEC, RANKS), *self.command], "mpirun", environment())
        return self

    def pids(self):
        """The ids of the pptrain processes with this run's folder, kept once all were seen."""
        if self.known and len(self.known) == RANKS:
            return self.known
        found = {}
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                # pptrain executes another program if a command needs LibTorch.
                if os.readlink(folder / "exe") not in (f"{PPTRAIN}_whole", f"{PPTRAIN}_cuda") or str(self.folder).encode() not in (folder / "cmdline").read_bytes():
                    continue
                env = (folder / "environ").read_bytes()
            except OSError:
                continue
            rank = re.search(rb"(?:OMPI_COMM_WORLD_RANK|PMI_RANK)=(\d+)", env)
            if rank:
                found[int(rank[1])] = int(folder.name)
        self.known = found
        return found


class Liveness(Case):
    times = {}

    @classmethod
    def tearDownClass(cls):
        for name, times in cls.times.items():
            cut = statistics.quantiles(times, n=20) if len(times) > 2 else times
            print(f"{name}: {len(times)} trials, seconds until the others were gone: min {min(times):.2f}, "
                  f"median {statistics.median(times):.2f}, 95 % {cut[-1]:.2f}, max {max(times):.2f}")

    def setUp(self):
        super().setUp()
        self.random = random.Random(f"{SEED} {self.id()}")

    def job(self, kind, *settings):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        job = kind(folder, *settings)
        self.addCleanup(job.close)
        return job

    def hit(self, job, victim, sign, name, limit=LIMIT):
        """Sends the signal; the other ranks must end in time."""
        os.kill(job.pids()[victim], sign)
        start = time.monotonic()
        wait_for(lambda: job.others_gone(victim), limit,
                 lambda: f"seed {SEED}: rank {victim} after {sign!r}: others live\n{job.output()}", pause=0.005)
        self.times.setdefault(name, []).append(time.monotonic() - start)

    def trial(self, kind, sign, name):
        job = self.job(kind).start()
        wait_for(lambda: len(job.pids()) == RANKS, 60, "all ranks")
        job.wait_for_steps(2)
        time.sleep(self.random.uniform(0, 1.5))
        victim = self.random.randrange(RANKS)
        self.hit(job, victim, sign, name)
        said = job.messages()
        cause = "is gone" if sign == signal.SIGKILL else "no sign of life for"
        if kind is MpiJob and sign == signal.SIGKILL and not said:
            # mpirun was quicker: it ended the others with its own message.
            job.close()
            return
        self.assertEqual(len(said), 1, f"seed {SEED}, victim {victim}: {said}\n{job.output()}")
        self.assertRegex(said[0], rf"pptrain: rank {victim} \(host .*{cause}", job.output())
        self.assertRegex(said[0], r"When last heard of, [\d.]+ s ago, it was (waiting for|in) .* for [\d.]+ s\.|It had not told")
        status = subprocess.run([PPTRAIN, "status", job.folder / "run"], capture_output=True, text=True, env=environment())
        if victim > 0 or sign == signal.SIGKILL:  # else the stopped process still has the folder
            self.assertIn(f"rank {victim} (host", status.stdout)
        if kind is TcpJob:
            codes = [p.wait(10) for r, p in enumerate(job.processes) if r != victim]
            self.assertEqual(codes, [1] * (RANKS - 1), job.output())
        job.close()

    def trials(self, kind, sign, name):
        for trial in range(TRIALS):
            with self.subTest(trial=trial, seed=SEED):
                self.trial(kind, sign, name)


class Kills(Liveness):
    def test_tcp_kill(self):
        self.trials(TcpJob, signal.SIGKILL, "TCP, SIGKILL")

    def test_tcp_stop(self):
        self.trials(TcpJob, signal.SIGSTOP, "TCP, SIGSTOP")

    @with_mpi
    def test_mpi_kill(self):
        self.trials(MpiJob, signal.SIGKILL, "MPI, SIGKILL")

    @with_mpi
    def test_mpi_stop(self):
        self.trials(MpiJob, signal.SIGSTOP, "MPI, SIGSTOP")


class Starts(Liveness):
    def start_up_trial(self, kind, sign, name, *settings):
        """The signal comes at any time after the process has started."""
        job = self.job(kind, *settings).start()
        wait_for(lambda: len(job.pids()) == RANKS, 60, "all ranks")
        time.sleep(self.random.uniform(0, 1.0))
        victim = self.random.randrange(RANKS)
        self.hit(job, victim, sign, name)
        if sign == signal.SIGSTOP:
            # Before heartbeats run, a rank may also report that the rank with the first message has ended.
            said = job.messages()
            self.assertIn(len(said), (1, 2), job.output())
            self.assertTrue(any(f"rank {victim} " in line for line in said), job.output())
        job.close()

    @with_mpi
    def test_mpi_stopped_at_start_up(self):
        for trial in range(TRIALS):
            with self.subTest(trial=trial, seed=SEED):
                self.start_up_trial(MpiJob, signal.SIGSTOP, "MPI, SIGSTOP at start-up")

    def test_tcp_stopped_at_start_up(self):
        for trial in range(TRIALS):
            with self.subTest(trial=trial, seed=SEED):
                self.start_up_trial(TcpJob, signal.SIGSTOP, "TCP, SIGSTOP at start-up")

    def test_tcp_killed_at_start_up(self):
        """If a rank dies before any other has seen it, the others report that it has not come."""
        for trial in range(TRIALS):
            with self.subTest(trial=trial, seed=SEED):
                self.start_up_trial(TcpJob, signal.SIGKILL, "TCP, SIGKILL at start-up", "distributed.start_timeout_s=6")

    def test_a_rank_alone_takes_a_signal(self):
        job = self.job(TcpJob).start(ranks=[0])
        time.sleep(2)
        self.assertIsNone(job.processes[0].poll(), job.output())
        job.processes[0].send_signal(signal.SIGTERM)
        self.assertIn(job.processes[0].wait(5), (3, 128 + signal.SIGTERM, -signal.SIGTERM), job.output())

    def test_a_rank_alone_ends_by_its_start_timeout(self):
        job = self.job(TcpJob, "distributed.start_timeout_s=2").start(ranks=[0])
        self.assertEqual(job.processes[0].wait(20), 1, job.output())
        self.assertRegex(job.output(), r"1, 2")


class Outages(Liveness):
    # --- events that must not end a run ------------------------------------------------------------------------------

    def test_a_suspended_run_goes_on(self):
        job = self.job(TcpJob, "distributed.heartbeat_s=2", "distributed.timeout_s=3").start()
        job.wait_for_steps(2)
        for _ in range(2):
            for pid in job.pids().values():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.2)
            time.sleep(5)
            for pid in job.pids().values():
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.2)
            job.wait_for_steps(20)
        self.assertEqual(job.messages(), [])

    def test_a_short_stop_of_one_rank_ends_nothing(self):
        job = self.job(TcpJob).start()
        job.wait_for_steps(2)
        os.kill(job.pids()[1], signal.SIGSTOP)
        time.sleep(4)
        os.kill(job.pids()[1], signal.SIGCONT)
        job.wait_for_steps(20)
        self.assertEqual(job.messages(), [])

    # --- hosts -------------------------------------------------------------------------------------------------------

    @as_root
    def test_an_unreachable_host(self):
        """One network namespace for each rank, joined by a bridge in another namespace; one cable drops everything."""
        tag = f"pl{os.getpid() % 10000}"
        spaces = [f"{tag}n{i}" for i in range(RANKS + 1)]
        switch = spaces[-1]

        def ip(*arguments, check=True):
            return subprocess.run(["ip", *arguments], check=check, capture_output=True, text=True)

        def inside(space, *arguments):
            return ip("netns", "exec", space, "ip", *arguments)

        for space in spaces:
            self.addCleanup(ip, "netns", "del", space, check=False)
            try:
                ip("netns", "add", space)
            except subprocess.CalledProcessError as error:
                self.skipTest(f"no network namespaces here: {error.stderr}")
        inside(switch, "link", "add", "bridge0", "type", "bridge")
        inside(switch, "link", "set", "bridge0", "up")
        for i, space in enumerate(spaces[:-1]):
            inside(switch, "link", "add", f"port{i}", "type", "veth", "peer", "name", "eth0", "netns", space)
            inside(switch, "link", "set", f"port{i}", "master", "bridge0", "up")
            inside(space, "addr", "add", f"10.77.0.{i + 1}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                inside(space, "link", "set", device, "up")
            inside(space, "route", "add", "default", "via", "10.77.0.1" if i else "10.77.0.2")
        for victim in [1] if TRIALS == 1 else range(RANKS):
            with self.subTest(victim=victim):
                job = self.job(TcpJob).start(prefix=lambda rank: ["ip", "netns", "exec", spaces[rank]], address="10.77.0.1")
                job.wait_for_steps(5)
                inside(switch, "link", "set", f"port{victim}", "nomaster")
                start = time.monotonic()
                wait_for(lambda: job.others_gone(victim), LIMIT, job.output)
                self.times.setdefault("TCP, unreachable host", []).append(time.monotonic() - start)
                text = "\n".join(job.messages())
                self.assertRegex(text, rf"rank {victim} \(host .*10\.77\.0\.{victim + 1}\) has been unreachable", job.output())
                # The disconnected rank can only report that the others are unreachable; it ends too.
                job.processes[victim].wait(LIMIT)
                inside(switch, "link", "set", f"port{victim}", "master", "bridge0")
                job.close()


if __name__ == "__main__":
    unittest.main()
