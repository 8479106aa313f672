"""Accidents: while a run saves or loads, each input or output call fails in turn, or the program dies there.

Usage: accidents_test.py PPTRAIN FAILING_CALLS MPIEXEC [unittest arguments]
FAILING_CALLS is the library of test/support/failing_calls.cpp; MPIEXEC is "" in a build without MPI.

After any accident the same command must go on from the newest complete checkpoint and end with the numbers of an
undisturbed run. PPTRAIN_ACCIDENTS=all takes every call (some minutes), PPTRAIN_ACCIDENTS=N takes N of them, 12 by
default. PPTRAIN_ACCIDENTS_SEED is the seed of the draw.
"""

import collections
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from pptrain import (checksums, environment, free_port, job, manifest, mpi_command, rank_environment, run, sets,  # noqa: E402
                     start, steps, temporary_folder, wait_for, wait_for_steps)

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
FAILING_CALLS = pathlib.Path(sys.argv.pop(1)).resolve()
MPIEXEC = sys.argv.pop(1)
SAMPLE = os.environ.get("PPTRAIN_ACCIDENTS", "12")
SEED = int(os.environ.get("PPTRAIN_ACCIDENTS_SEED", "0"))
WORKERS = int(os.environ.get("PPTRAIN_ACCIDENTS_WORKERS", "2"))

JOB = job(model={"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2},
          train={"micro_batch_size": 1, "grad_accum_steps": 2}, optimizer={"lr": 1e-2},
          lr_schedule={"name": "constant", "warmup_steps": 0}, checkpoint={"interval": 2, "keep_last_n": 1},
          metrics={"log_interval": 1})

# The errors, and the calls that they can hit.
WRITING = ("open", "openat", "pwrite", "write", "fsync", "close", "mkdir", "rename", "renameat2")
ACTIONS = {
    "EIO": None,  # any
    "kill": None,
    "ENOSPC": WRITING,
    "EACCES": ("open", "openat", "mkdir", "rename", "renameat2", "unlinkat", "stat", "lstat"),
    "short": ("pwrite", "write", "pread", "read"),
}
REASONS = {"EIO": "Input/output error", "ENOSPC": "No space left on device", "EACCES": "Permission denied"}


def complete(checkpoints):
    """The steps with a manifest: it is written last."""
    return sorted(int(m.parent.name[5:]) for m in checkpoints.glob("step_*/manifest.json"))


def numbers(run_dir):
    """The results that must not depend on accidents: each step's numbers and the last checkpoint's checksums."""
    figures = {r["step"]: {k: r[k] for k in ("loss", "grad_norm", "lr", "tokens")} for r in steps(run_dir)}
    last = run_dir / "checkpoints" / f"step_{complete(run_dir / 'checkpoints')[-1]}"
    return figures, checksums(last), manifest(last)["state"]


def wait_for_ranks_of(run_dir):
    """Waits for the ranks: they may end a moment after mpirun and still save."""
    def gone():
        return all(str(run_dir).encode() not in command_line(p) for p in pathlib.Path("/proc").glob("[0-9]*/cmdline"))
    wait_for(gone, 60, f"the ranks of {run_dir} outlive mpirun", pause=0.05)


def command_line(path):
    try:
        return path.read_bytes()
    except OSError:  # it has just ended
        return b""


class Accidents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = temporary_folder(cls.addClassCleanup)
        cls.job = cls.folder / "job.toml"
        cls.job.write_text(JOB)
        cls.whole = {}
        for steps in (4, 6):
            done = cls.run_job(cls.folder / f"whole_{steps}", f"train.steps={steps}")
            assert done.returncode == 0, done.stderr
            cls.whole[steps] = numbers(cls.folder / f"whole_{steps}")

    @classmethod
    def command(cls, run_dir, *settings):
        return [PPTRAIN, "--config", cls.job, *sets(f'run.dir="{run_dir}"', *settings)]

    @classmethod
    def run_job(cls, run_dir, *settings, prefix=(), timeout=120, **failing):
        """Runs the job on threads, or under mpirun with `prefix`; `failing` are variables of the library."""
        env = environment()
        if failing:
            failing.setdefault("folder", run_dir / "checkpoints")
            env = environment(LD_PRELOAD=FAILING_CALLS, **{"FAILING_" + k.upper(): v for k, v in failing.items()})
        return run([*prefix, *cls.command(run_dir, *settings)], cls.folder, code=None, timeout=timeout, env=env)

    def calls(self, run_dir, *settings):
        """The calls of an undisturbed run, in order: (name, path)."""
        log = self.folder / "calls"
        log.unlink(missing_ok=True)
        done = self.run_job(run_dir, *settings, log=log)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [tuple(line.split(" ", 2)[1:]) for line in log.read_text().splitlines()]

    def cases(self, calls):
        """All (number of the call, action), or a sample of them."""
        every = [(number, action) for number, (name, _) in enumerate(calls, 1) for action, names in ACTIONS.items()
                 if names is None or name in names]
        if SAMPLE == "all":
            return every
        return sorted(random.Random(SEED).sample(every, min(int(SAMPLE), len(every))))

    def sweep(self, cases, check):
        """Calls check(number, action) for all; reports every failure, and the count of each outcome."""
        ends, failures = collections.Counter(), []

        def one(case):
            try:
                ends[check(*case)] += 1
            except Exception as error:  # after any error the other cases go on
                failures.append(f"call {case[0]}, {case[1]}: {type(error).__name__}: {error}")

        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(one, cases))
        print(f"{self._testMethodName}: {len(cases)} accidents, {dict(sorted(ends.items()))}", file=sys.stderr)
        self.assertEqual(failures, [])

    def goes_on(self, run_dir, steps, *settings, context=""):
        """The same command, undisturbed, goes from the newest complete checkpoint to the numbers of the whole run."""
        saved = complete(run_dir / "checkpoints")
        again = self.run_job(run_dir, f"train.steps={steps}", *settings)
        self.assertEqual(again.returncode, 0, f"{context}\n{again.stdout}\n{again.stderr}")
        if saved and saved[-1] < steps:
            self.assertIn(f"step_{saved[-1]} at step {saved[-1]}", again.stdout, context)
        self.assertEqual(numbers(run_dir), self.whole[steps], context)

    def check_end(self, done, action, context):
        """How the disturbed run ended: as usual, with a message that gives the reason, or killed."""
        if action == "kill":
            self.assertIn(done.returncode, (-9, 137), context)
            return "killed"
        self.assertIn(done.returncode, (0, 1), context)
        if action == "short":
            self.assertEqual(done.returncode, 0, context)
        if done.returncode == 1:
            self.assertIn(REASONS[action], done.stderr, context)
            return "failed"
        told = ("not saved", "passed over", "cannot remove", "is saved, but")
        return "warned" if any(words in done.stdout + done.stderr for words in told) else "unhurt"

    def start_ranks(self, run_dir, *settings, failing=None, **extra):
        """Starts two processes over TCP, so that there are heartbeats; `failing`: variables of the library in rank 0."""
        port = free_port()
        ranks = []
        for rank in range(2):
            env = rank_environment(rank, 2, port, **extra)
            if rank == 0:
                env.update(LD_PRELOAD=str(FAILING_CALLS), FAILING_FOLDER=str(run_dir),
                           **{"FAILING_" + k.upper(): str(v) for k, v in failing.items()})
            ranks.append(start(self.command(run_dir, *settings), self.folder, env=env))
            self.addCleanup(ranks[-1].kill)
        return ranks

    def test_a_pause_of_the_disk_in_what_rank_0_writes_for_all(self):
        """Training needs none of these files, so the run survives a call that hangs for longer than heartbeat_s."""
        cases = [("requests", "openat", 3), ("metrics.jsonl", "pwrite", 2), ("trace.json", "fsync", 1),
                 ("end.json", "fsync", 1)]
        for number, (name, calls, at) in enumerate(cases):
            with self.subTest(name):
                run_dir, log = self.folder / f"pause_{number}", self.folder / f"pause_{number}.log"
                ranks = self.start_ranks(run_dir, "distributed.heartbeat_s=1", "train.steps=2", "profile.trace=true",
                                         "profile.first_step=1", "profile.steps=1",
                                         failing={"name": name, "calls": calls, "at": at, "from": 1, "action": "hang:2.5", "log": log})
                outputs = [rank.communicate(timeout=120) for rank in ranks]
                self.assertEqual([rank.returncode for rank in ranks], [0, 0], outputs)
                self.assertGreaterEqual(len(log.read_text().splitlines()), at, "the call came")
                self.assertEqual(complete(run_dir / "checkpoints"), [2])

    def test_a_quick_stop_whose_last_word_comes_late(self):
        """Rank 1 has ended by then; rank 0's main thread takes that for a failure."""
        run_dir = self.folder / "late_word"
        ranks = self.start_ranks(run_dir, "train.grad_accum_steps=4000", "train.steps=100", "checkpoint.interval=0",
                                 PPTRAIN_STOP_SECONDS=0.4,
                                 failing={"name": "end.json", "calls": "rename", "at": 1, "action": "late:3"})
        wait_for_steps(ranks, run_dir, 1, seconds=120)
        time.sleep(0.5)  # into the next step, which takes seconds
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
        outputs = [rank.communicate(timeout=60) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [3, 3], outputs)
        self.assertIn("in the middle of a step", outputs[0][0])
        end = json.loads((run_dir / "end.json").read_text())
        self.assertEqual((end["how"], [end["step"]]), ("stopped", complete(run_dir / "checkpoints")))

    def test_every_call_of_a_save(self):
        calls = self.calls(self.folder / "count_save")
        self.assertGreater(len(calls), 60)

        def check(number, action):
            run_dir = self.folder / f"save_{number}_{action}"
            done = self.run_job(run_dir, at=number, action=action)
            context = f"{calls[number - 1]}\n{done.stdout}\n{done.stderr}"
            end = self.check_end(done, action, context)
            if done.returncode == 0:
                self.assertEqual(complete(run_dir / "checkpoints")[-1], 4, context)
            self.goes_on(run_dir, 4, context=context)
            shutil.rmtree(run_dir)
            return end

        self.sweep(self.cases(calls), check)

    def test_every_call_of_a_load(self):
        base = self.folder / "to_load"
        self.assertEqual(self.run_job(base, "checkpoint.keep_last_n=0").returncode, 0)
        shutil.copytree(base, self.folder / "count_load")
        settings = ("train.steps=6", "checkpoint.keep_last_n=0")
        calls = self.calls(self.folder / "count_load", *settings)
        first_save = next(i for i, (name, path) in enumerate(calls) if name == "mkdir" and ".tmp_step_6" in path)

        def check(number, action):
            run_dir = self.folder / f"load_{number}_{action}"
            shutil.copytree(base, run_dir)
            done = self.run_job(run_dir, *settings, at=number, action=action)
            context = f"{calls[number - 1]}\n{done.stdout}\n{done.stderr}"
            end = self.check_end(done, action, context)
            self.assertNotIn("step 1/6", done.stdout, context)
            self.goes_on(run_dir, 6, "checkpoint.keep_last_n=0", context=context)
            shutil.rmtree(run_dir)
            return end

        self.sweep(self.cases(calls[:first_save]), check)

    def test_nothing_readable_is_no_new_run(self):
        run_dir = self.folder / "unreadable"
        self.run_job(run_dir, "checkpoint.keep_last_n=0")
        for calls, text in (("pread", "cannot read"), ("mmap", "cannot map"), ("open", "Input/output error"),
                            ("openat,opendir,open", "Input/output error")):
            done = self.run_job(run_dir, "train.steps=6", at=1, **{"from": 1}, calls=calls, action="EIO")
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(text, done.stderr)
            self.assertNotIn("step 1/6", done.stdout)
        self.assertIn("none of the checkpoints", self.run_job(run_dir, "train.steps=6", at=1, **{"from": 1}, calls="pread",
                                                               action="EIO").stderr)
        self.goes_on(run_dir, 6)

    def test_a_manifest_is_read_not_mapped(self):
        """A bad sector under a mapped file is a signal (SIGBUS) instead of an error for this checkpoint."""
        run_dir, log = self.folder / "manifest", self.folder / "manifest.log"
        self.assertEqual(self.run_job(run_dir).returncode, 0)
        done = self.run_job(run_dir, "train.steps=6", calls="mmap,pread,read", name="manifest.json", log=log)
        self.assertEqual(done.returncode, 0, done.stderr)
        calls = [line.split()[1] for line in log.read_text().splitlines()]
        self.assertGreater(len(calls), 0)
        self.assertNotIn("mmap", calls)

    def test_a_full_disk_under_figures_ends_no_run(self):
        """Weights are saved. Files for people alone may be lost; the run reports that."""
        for number, name in enumerate(("metrics.jsonl", "tfevents", "trace.json")):
            with self.subTest(name):
                run_dir = self.folder / f"full_{number}"
                done = self.run_job(run_dir, "metrics.tensorboard=true", "profile.trace=true", "profile.first_step=1",
                                    "profile.steps=1", folder=run_dir, name=name, calls="pwrite,write,fsync", at=1,
                                    action="ENOSPC", **{"from": 1})
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("No space left on device", done.stdout + done.stderr)
                self.assertEqual(complete(run_dir / "checkpoints"), [4])

    def test_old_checkpoints_that_cannot_be_removed(self):
        run_dir = self.folder / "busy"
        leftover = run_dir / "checkpoints/.tmp_step_4"
        leftover.mkdir(parents=True)
        (leftover / "held").write_text("by a mount")
        done = self.run_job(run_dir, at=1, **{"from": 1}, calls="unlinkat", action="EBUSY")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("cannot remove", done.stdout + done.stderr)
        self.assertIn("Device or resource busy", done.stdout + done.stderr)
        self.assertTrue((leftover / "held").exists())
        self.assertEqual(numbers(run_dir), self.whole[4])
        self.goes_on(run_dir, 6)
        self.assertEqual(sorted(p.name for p in (run_dir / "checkpoints").iterdir()), ["latest", "step_6"])

    def test_a_slow_disk_is_no_failure(self):
        launches = [()] + ([mpi_command(MPIEXEC, 2)] if MPIEXEC else [])
        for i, prefix in enumerate(launches):
            rank = {"rank": 1} if prefix else {}
            run_dir = self.folder / f"slow_{i}"
            done = self.run_job(run_dir, "distributed.timeout_s=2", prefix=prefix, calls="fsync", at=3, action="sleep:4", **rank)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("not saved", done.stdout + done.stderr)
            self.assertEqual(numbers(run_dir), self.whole[4])
            done = self.run_job(run_dir, "train.steps=6", "distributed.timeout_s=2", prefix=prefix, calls="pread", at=2,
                                action="sleep:4", **rank)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(numbers(run_dir), self.whole[6])

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_a_rank_or_mpirun_killed_while_saving(self):
        calls = self.calls(self.folder / "count_mpi")
        count = 40 if SAMPLE == "all" else 4
        draw = random.Random(SEED)
        kinds = ("rank 0", "rank 1", "mpirun")
        cases = [(draw.randrange(1, len(calls) // 2), kind) for kind in kinds for _ in range(count // 3 + 1)]
        ended_early = set()

        def check(number, kind):
            run_dir = self.folder / f"mpi_{number}_{kind.replace(' ', '_')}"
            rank = 1 if kind == "rank 1" else 0
            done = self.run_job(run_dir, prefix=mpi_command(MPIEXEC, 2), at=number, rank=rank,
                                action="kill-parent" if kind == "mpirun" else "kill")
            wait_for_ranks_of(run_dir)
            self.goes_on(run_dir, 4, context=f"{kind} at {number}\n{done.stdout}\n{done.stderr}")
            if done.returncode == 0:
                return "had ended"
            ended_early.add(kind)
            return "ended early"

        self.sweep(cases, check)
        self.assertEqual(ended_early, set(kinds))


if __name__ == "__main__":
    unittest.main()
