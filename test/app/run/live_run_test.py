"""Running jobs: status, save and stop through the run's folder, and a run that diverges.

Usage: live_run_test.py PPTRAIN MPIEXEC [unittest arguments]; MPIEXEC is "" in a build without MPI.
"""

import json
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from pptrain import Case, job, manifest, mpi_command, run, sets, start, start_ranks, steps, wait_for  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
MPIEXEC = sys.argv.pop(1)
PATIENCE = 300  # seconds for every wait, on a busy machine

JOB = job(model={"num_hidden_layers": 2}, train={"steps": 1000000, "grad_accum_steps": 8}, data={"val_fraction": 0.1},
          eval={"interval": 1000000}, optimizer={"lr": 1e-3}, checkpoint={"interval": 0}, metrics={"log_interval": 100000})


class LiveRun(Case):
    def setUp(self):
        super().setUp()
        (self.folder / "job.toml").write_text(JOB)
        self.run_dir = self.folder / "run"

    def start(self, *settings, launcher=()):
        """Starts a run with low priority, so that the commands beside it are quick."""
        command = ["nice", *launcher, PPTRAIN, "--config", "job.toml", *sets("run.dir=run", *settings)]
        process = start(command, self.folder, stderr=subprocess.STDOUT)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def command(self, *arguments, code=0):
        return run([PPTRAIN, *arguments], self.folder, code=code, timeout=PATIENCE)

    def status(self, code=0):
        return json.loads(self.command("status", "run", "--json", code=code).stdout)

    def log(self):
        file = self.run_dir / "log.txt"
        return file.read_text() if file.exists() else ""

    def until(self, holds, what):
        wait_for(holds, PATIENCE, lambda: f"{what}\n{self.log()}")

    def wait_for_step(self, step):
        self.until(lambda: any(r["step"] == step for r in steps(self.run_dir)), f"step {step} was not reached")

    def saved(self, answer):
        saved = manifest(self.run_dir / "checkpoints" / answer["checkpoint"])
        self.assertEqual(saved["state"]["step"], answer["step"])
        return answer["step"]

    def check_live(self, process):
        """Status, two saves at the same time, and a stop; `process` is the run or its launcher."""
        self.wait_for_step(3)
        running = self.status()
        self.assertEqual(running["state"], "running")
        self.assertEqual(running["steps"], 1000000)
        self.assertGreaterEqual(running["step"], 3)
        self.assertGreater(running["tokens_per_s"], 0)
        self.assertGreater(running["seconds_left"], 0)
        self.assertNotIn("checkpoint", running)
        text = self.command("status", self.run_dir).stdout
        self.assertRegex(text, r"run: running, process \d+ on ")
        self.assertRegex(text, r"step +\d+ of 1000000")

        asking = [start([PPTRAIN, "save", "run", "--json"], self.folder) for _ in range(2)]
        answers = [json.loads(each.communicate(timeout=PATIENCE)[0]) for each in asking]
        self.assertEqual([each.returncode for each in asking], [0, 0], self.log())
        for answer in answers:
            self.assertEqual(answer["state"], "saved")
            self.saved(answer)
        self.assertIsNone(process.poll())
        at = self.status()
        self.assertEqual(at["checkpoint"], f"step_{max(answer['step'] for answer in answers)}")
        self.wait_for_step(at["step"] + 2)  # the run goes on

        answer = json.loads(self.command("stop", "run", "--json").stdout)
        self.assertEqual(answer["state"], "stopped")
        stopped_at = self.saved(answer)
        self.assertEqual(process.wait(PATIENCE), 3, self.log())
        self.assertIn(f"stopped on request at step {stopped_at}", self.log())
        stopped = self.status(code=3)
        self.assertEqual(stopped["state"], "stopped")
        self.assertEqual(stopped["step"], stopped_at)
        self.assertEqual(list((self.run_dir / "requests").iterdir()), [])
        self.command("verify", "run/checkpoints")
        return stopped_at

    def test_threads(self):
        stopped_at = self.check_live(self.start())

        # The run has ended.
        refused = self.command("stop", "run", code=1)
        self.assertIn("no run is under way here (stopped)", refused.stderr)
        self.assertEqual(list((self.run_dir / "requests").iterdir()), [])
        self.command("status", "nowhere", code=2)
        self.command("save", self.folder, code=2)

        # The next run ignores a stop for the run before it, and invalid requests.
        earlier = {"run": {"pid": 1, "host": "node1", "since": "2026-01-01 00:00:00 UTC"}, "pid": 2, "host": "node1"}
        (self.run_dir / "requests" / ("stop." + "0" * 32)).write_text(json.dumps(earlier))
        (self.run_dir / "requests" / ("stop." + "1" * 32)).write_text("{")
        (self.run_dir / "requests" / ("stop." + "2" * 32)).symlink_to(self.folder / "job.toml")
        process = self.start()
        self.wait_for_step(stopped_at + 3)
        log = self.log()
        self.assertIn("discarded a request for an earlier run: stop", log)
        self.assertEqual(log.count("a request is ignored"), 1)
        self.assertIn("is asked to stop", self.command("stop", "run", "--no-wait").stdout)
        self.assertEqual(process.wait(PATIENCE), 3, self.log())

        # A killed run is reported as dead, with the reason.
        process = self.start()
        self.until(lambda: not (self.run_dir / "end.json").exists() and self.status()["state"] == "running",
                   "the run did not start")
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
        self.assertRegex(self.command("status", "run", code=4).stdout, r"run: dead\b.*it was killed, or its host went down")
        with open(self.run_dir / "metrics.jsonl", "a") as file:
            file.write('{"step": 99, "lo')
        self.assertEqual(self.status(code=4)["state"], "dead")
        self.assertIn("dead", self.command("stop", "run", code=1).stderr)

    def pace(self):
        return json.loads((self.run_dir / "pace.json").read_text())

    def test_a_slow_rank_is_named(self):
        # Each step is longer than the times for which rank 1 runs below.
        command = [PPTRAIN, "--config", "job.toml", *sets("run.dir=run", "train.grad_accum_steps=64")]
        ranks = start_ranks([command] * 2, self.folder)
        for rank in ranks:
            self.addCleanup(rank.communicate)
            self.addCleanup(rank.kill)
        self.until(lambda: (self.run_dir / "pace.json").exists(), "the first steps were not judged")
        first = self.pace()
        self.assertEqual((first["first"], first["slow"]), (4, []))
        self.assertRegex(self.log(), rf"steps 4 to {first['last']}: .* a step.*; the plan was .*, modelled for cpu")
        self.assertIn(f"as steps 4 to {first['last']} (", self.status()["pace"]["text"])

        def slowed():
            """Rank 1 is stopped four fifths of the time."""
            ranks[1].send_signal(signal.SIGSTOP)
            time.sleep(0.04)
            ranks[1].send_signal(signal.SIGCONT)
            time.sleep(0.01)
            return self.pace()["slow"]
        self.until(slowed, "the slow rank was not noticed")
        why = self.pace()["slow"][0]["why"]
        self.until(lambda: why in self.log(), "the log does not say what is slow")
        for rank in ranks:  # they only need to exist
            rank.send_signal(signal.SIGSTOP)
        self.assertRegex(why, r"^rank 1's (forward|backward|data and optimizer) \+\d+ %")
        status = self.status()["pace"]
        self.assertTrue(status["slow"])
        self.assertIn(why, self.command("status", "run").stdout)
        self.assertRegex(self.log(), rf"steps \d+ to \d+: \d+ % slower than steps 4 to \d+: {re.escape(why)}")
        self.command("report", "run")
        self.assertIn(why, (self.run_dir / "report.html").read_text())

    def test_a_list_of_runs_and_one_that_is_watched(self):
        process = self.start("train.steps=40", "train.grad_accum_steps=64")
        self.wait_for_step(1)
        watched = start([PPTRAIN, "status", "run", "--watch", "--json"], self.folder)
        self.assertEqual(process.wait(PATIENCE), 0, self.log())
        states = [json.loads(line)["state"] for line in watched.communicate(timeout=PATIENCE)[0].splitlines()]
        self.assertEqual(watched.returncode, 3)
        self.assertEqual([states[0], states[-1]], ["running", "finished"])
        (self.folder / "empty").mkdir()
        lines = self.command("status", self.folder).stdout.splitlines()
        self.assertEqual(len(lines), 1)
        self.assertRegex(lines[0], r"run +finished +step 40 of 40, loss ")
        self.assertEqual(json.loads(self.command("status", self.folder, "--json").stdout)["state"], "finished")

    def test_a_second_interrupt_leaves_its_reason(self):
        process = self.start("train.grad_accum_steps=400")  # a step of many seconds
        self.until(lambda: "output in" in self.log(), "the run did not start")
        process.send_signal(signal.SIGINT)
        self.until(lambda: "press again to stop at once" in self.log(), "the first interrupt was not heard")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(PATIENCE), 130)
        status = self.status(code=4)
        self.assertEqual(status["state"], "dead")
        self.assertEqual(status["message"], "SIGINT asked the run to end, and its process ended before it had saved")

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_mpirun(self):
        launcher = mpi_command(MPIEXEC, 2)
        process = self.start("optimizer.post_validation=true", launcher=launcher)
        self.check_live(process)

    def test_a_run_that_ends_meanwhile(self):
        """Whether the request or the end comes first, the answer to a stop names a checkpoint at the end."""
        process = self.start("train.steps=30", "train.grad_accum_steps=32")
        self.wait_for_step(1)
        answer = json.loads(self.command("stop", "run", "--json", code=None).stdout)
        code = process.wait(PATIENCE)
        self.assertIn((answer["state"], code),
                      [("stopped", 3), ("stopped", 0), ("finished", 0), ("refused", 0)], self.log())
        if answer["state"] == "refused":  # the run had ended when it was asked
            self.assertIn("the newest checkpoint is step_30", answer["message"])
        else:
            self.saved(answer)
        state = self.status(code=3)["state"]
        self.assertEqual(state, "finished" if code == 0 else "stopped")

    def test_a_refused_save_is_told(self):
        """The answer says that the save failed, and the run goes on."""
        process = self.start()
        self.wait_for_step(2)
        checkpoints = self.run_dir / "checkpoints"
        shutil.rmtree(checkpoints)
        checkpoints.write_text("in the way")
        answer = json.loads(self.command("save", "run", "--json", code=1).stdout)
        self.assertEqual(answer["state"], "failed")
        self.assertIn("was not saved", answer["message"])
        self.assertIsNone(process.poll())
        checkpoints.unlink()
        self.saved(json.loads(self.command("save", "run", "--json").stdout))

    def take_away(self):
        """Removes the run's folder in one step, since the run may be writing there."""
        self.run_dir.rename(self.folder / "gone")

    def test_a_folder_that_is_deleted_costs_no_weights(self):
        for launcher in ((), mpi_command(MPIEXEC, 2) if MPIEXEC else None):
            if launcher is None:
                continue
            process = self.start("checkpoint.interval=4", launcher=launcher)
            self.wait_for_step(10)
            self.take_away()
            shutil.rmtree(self.folder / "gone")
            said = process.communicate(timeout=PATIENCE)[0]
            self.assertEqual(process.returncode, 1, said)
            self.assertIn("run.dir: run was deleted or moved while the run went on", said)
            saved = re.search(r"The state of step (\d+) is saved in run/checkpoints/step_(\d+), from which the same command goes on", said)
            self.assertEqual(saved[1], saved[2])
            status = self.status(code=4)
            self.assertEqual((status["state"], status["checkpoint"]), ("failed", f"step_{saved[1]}"))
            self.command("verify", f"run/checkpoints/step_{saved[1]}")
            steps_in_all = int(saved[1]) + 3
            again = self.command("--config", "job.toml", *sets("run.dir=run", f"train.steps={steps_in_all}"))
            self.assertIn(f"resumed from run/checkpoints/step_{saved[1]} at step {saved[1]}", again.stdout)
            self.assertIn(f"done: {steps_in_all} steps", again.stdout)
            shutil.rmtree(self.run_dir)

    def test_a_folder_that_another_run_has_taken_is_left_alone(self):
        process = self.start()
        self.wait_for_step(3)
        other = self.folder / "other"
        other.mkdir()
        (other / "metrics.jsonl").touch()
        self.take_away()
        other.rename(self.run_dir)
        said = process.communicate(timeout=PATIENCE)[0]
        self.assertEqual(process.returncode, 1, said)
        self.assertIn("another run has used the folder since: nothing is saved there", said)
        self.assertEqual(sorted(path.name for path in self.run_dir.iterdir() if path.name != "pace.json"), ["metrics.jsonl"])

    def test_a_second_interrupt_says_what_is_lost(self):
        process = self.start("checkpoint.interval=4", "train.grad_accum_steps=1600")  # a step of a second
        self.wait_for_step(6)
        process.send_signal(signal.SIGINT)
        self.until(lambda: "press again to stop at once" in self.log(), "the first interrupt was not heard")
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=PATIENCE)[0]
        self.assertEqual(process.returncode, 130, said)
        lost = re.search(r"ended at once in step (\d+): the newest checkpoint is step_(\d+), so (\d+) finished steps? (?:is|are) lost\n", said)
        self.assertEqual(int(lost[1]) - 1 - int(lost[2]), int(lost[3]), said)
        self.assertTrue((self.run_dir / "checkpoints" / f"step_{lost[2]}").is_dir())

    def test_a_save_that_fails_after_a_resume_says_what_is_saved(self):
        self.start("train.steps=2").wait(PATIENCE)
        process = self.start("train.steps=1000000")
        self.wait_for_step(4)
        checkpoints = self.run_dir / "checkpoints"
        checkpoints.rename(self.run_dir / "elsewhere")
        checkpoints.write_text("in the way")
        self.command("save", "run", "--json", code=1)
        self.until(lambda: "The newest checkpoint is step_2." in self.log(), "the newest checkpoint is not named")
        process.kill()

    def test_a_run_that_diverges(self):
        letters = random.Random(1)
        text = "".join(letters.choice("abcd") for _ in range(1600)) + "".join(chr(33 + 37 * i % 90) for i in range(3200))
        (self.folder / "text.txt").write_text(text)
        process = self.start('data.path="text.txt"', "data.val_fraction=0", "data.shuffle=false", "eval.interval=0",
                             "train.grad_accum_steps=1", "optimizer.lr=1e-2", "train.divergence_steps=4",
                             "train.divergence_window=8", "train.divergence_band=20", "checkpoint.interval=1",
                             "checkpoint.keep_last_n=2", "distributed.pp=1")
        self.assertEqual(process.wait(PATIENCE), 1, self.log())
        diverged = self.status(code=4)
        self.assertEqual(diverged["state"], "diverged")
        self.assertRegex(diverged["message"], r"diverged at step \d+: the loss lies above its band since step \d+")
        self.assertIn(f"run/checkpoints/{diverged['checkpoint']}, from which the same command goes on", diverged["message"])
        self.assertTrue((self.run_dir / "checkpoints" / f"diverged_step_{diverged['step']}").is_dir())


if __name__ == "__main__":
    unittest.main()
