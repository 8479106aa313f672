"""Fewer processes than ranks: each has several ranks as threads, and the run has the bits of one process a rank.

Usage: blocks_test.py PPTRAIN MPIEXEC [unittest arguments]
"""

import json
import pathlib
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from pptrain import (Case, checksums, free_port, job, latest, mpi_command, rank_environment, run, sets, start,  # noqa: E402
                     start_ranks, steps, wait_for_steps)

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
MPIEXEC = sys.argv.pop(1)
JOB = job(model={"num_key_value_heads": 2}, distributed={"pp": 2, "dp_shard": 2, "tp": 2, "pp_schedule": "zbv"},
          checkpoint={"interval": 2}, data={"val_fraction": 0.1}, eval={"interval": 2, "batches": 1})
# What starts a process that may rename its host.
RENAMED = next((words for words in (["unshare", "--uts"], ["unshare", "--user", "--map-root-user", "--uts"])
                if subprocess.run([*words, "true"], capture_output=True).returncode == 0), None)


def result(run_dir):
    keys = ("step", "loss", "grad_norm", "tokens")
    return checksums(latest(run_dir)), [[record.get(key) for key in keys] for record in steps(run_dir)]


class Blocks(Case):
    def setUp(self):
        super().setUp()
        (self.folder / "job.toml").write_text(JOB)

    def command(self, name, *settings):
        return [PPTRAIN, "--config", "job.toml", *sets(f'run.dir="{name}"', *settings)]

    def launch(self, processes, name, *settings, **options):
        return start_ranks([self.command(name, *settings)] * processes, self.folder, **options)

    def ended(self, processes, seconds=60):
        outputs = [process.communicate(timeout=seconds) for process in processes]
        return [process.returncode for process in processes], outputs

    def test_any_number_of_processes(self):
        run(self.command("threads"), self.folder)
        expected = result(self.folder / "threads")
        fitted = "8 ranks, but 5 processes: the pipeline has 1 rank instead of 2, with the same bits; 1 process is spare"
        for processes, said in ((8, ""), (5, fitted), (3, "2 + 3 + 3"), (2, "4 + 4")):
            with self.subTest(processes=processes):
                name = f"processes_{processes}"
                codes, outputs = self.ended(self.launch(processes, name))
                self.assertEqual(codes, [0] * processes, outputs)
                self.assertEqual(result(self.folder / name), expected)
                self.assertIn(said, outputs[0][0])

    @unittest.skipUnless(RENAMED, "may not rename a host")
    def test_ranks_on_two_hosts(self):
        """What goes between hosts goes in two steps, which change no bit."""
        for name, settings in (("sharded", {"dp_shard": 4}), ("replicated", {"dp_replicate": 4}),
                               ("both", {"dp_replicate": 2, "dp_shard": 2}), ("tp", {"tp": 4, "dp_shard": 1})):
            with self.subTest(name):
                settings = [f"distributed.{key}={size}" for key, size in ({"pp": 1, "dp_shard": 1, "tp": 1} | settings).items()]
                settings += ["distributed.pp_schedule=1f1b", "model.num_key_value_heads=4", "model.hidden_size=256"]
                run(self.command(name, *settings), self.folder)
                renamed = [[*RENAMED, "sh", "-c", f'hostname host{rank // 2} && exec "$@"', "sh",
                            *self.command(f"{name}_2", *settings), "--log", "comm=debug"] for rank in range(4)]
                codes, outputs = self.ended(start_ranks(renamed, self.folder))
                self.assertEqual(codes, [0] * 4, outputs)
                self.assertRegex("".join(sum(outputs, ())), r"ranks 0,1,2,3, in blocks of 2 on a host")
                self.assertEqual(result(self.folder / f"{name}_2"), result(self.folder / name))

    def test_a_pipeline_that_can_not_be_shorter(self):
        """Other splits of the ranks have other bits, and so has a spread head on a shorter pipeline."""
        for name, blocks, settings in (("stages", "1 + 2 + 1 + 2 + 2", ("distributed.pp=1", "distributed.dp_shard=4")),
                                       ("spread", "1 + 2 + 1 + 2 + 2", ("distributed.pp_head=spread",)),
                                       ("auto", "1 + 2 + 1 + 2 + 2", ("distributed.pp_head=auto",))):
            with self.subTest(name):
                run(self.command(name, *settings), self.folder)
                codes, outputs = self.ended(self.launch(5, f"{name}_5", *settings))
                self.assertEqual(codes, [0] * 5, outputs)
                self.assertIn(blocks, outputs[0][0])
                self.assertEqual(result(self.folder / f"{name}_5"), result(self.folder / name))

    def test_a_shorter_pipeline_whose_split_rank_0_chooses(self):
        run(self.command("threads"), self.folder)
        codes, outputs = self.ended(self.launch(5, "five", "distributed.pp_split=cost"))
        self.assertEqual(codes, [0] * 5, outputs)
        self.assertIn("8 ranks, but 5 processes", outputs[0][0])
        self.assertEqual(result(self.folder / "five"), result(self.folder / "threads"))
        self.assertNotIn("pp = 1", (self.folder / "five/job.toml").read_text())

    def test_spare_processes_end_with_the_run(self):
        processes = self.launch(5, "run", "train.steps=100000", own_start=True)
        wait_for_steps(processes, self.folder / "run", 3)
        processes[0].send_signal(signal.SIGTERM)
        codes, outputs = self.ended(processes, seconds=20)
        self.assertEqual(codes, [3] * 5, outputs)

    def test_a_spare_process_that_its_agent_ends_takes_leave(self):
        """It does after three seconds, while the others' step waits for a process that stands still: they stop in order."""
        processes = self.launch(5, "run", "train.steps=100000", own_start=True, TORCHELASTIC_RUN_ID="agent")
        wait_for_steps(processes, self.folder / "run", 1)
        processes[1].send_signal(signal.SIGSTOP)
        for process in processes:
            process.send_signal(signal.SIGTERM)
        time.sleep(3.5)
        processes[1].send_signal(signal.SIGCONT)
        codes, outputs = self.ended(processes, seconds=60)
        self.assertEqual(codes, [3] * 5, outputs)
        self.assertEqual(json.loads((self.folder / "run/end.json").read_text())["how"], "stopped")
        self.assertTrue(latest(self.folder / "run"))

    def test_spare_processes_end_when_another_one_dies(self):
        processes = self.launch(5, "run", "train.steps=100000")
        wait_for_steps(processes, self.folder / "run", 3)
        processes[1].send_signal(signal.SIGKILL)
        codes, outputs = self.ended(processes, seconds=15)
        self.assertEqual(codes, [1, -signal.SIGKILL, 1, 1, 1], outputs)

    @unittest.skipUnless(MPIEXEC, "without MPI")
    def test_mpirun(self):
        run(self.command("threads"), self.folder)
        done = run([*mpi_command(MPIEXEC, 3), *self.command("mpi")], self.folder)
        self.assertIn("8 ranks in 3 processes: 2 + 3 + 3", done.stdout)
        self.assertEqual(result(self.folder / "mpi"), result(self.folder / "threads"))

    def test_a_run_goes_on_in_other_processes(self):
        run(self.command("whole", "train.steps=6"), self.folder)
        for count, processes in ((2, 3), (4, 8), (6, 2)):
            codes, outputs = self.ended(self.launch(processes, "parts", f"train.steps={count}", "lr_schedule.name=constant"))
            self.assertEqual(codes, [0] * processes, outputs)
        run(self.command("constant", "train.steps=6", "lr_schedule.name=constant"), self.folder)
        self.assertEqual(result(self.folder / "parts")[0], result(self.folder / "constant")[0])

    @unittest.skipUnless(" avx2 " in pathlib.Path("/proc/cpuinfo").read_text(), "one instruction set alone")
    def test_ranks_with_other_instruction_sets_are_refused(self):
        port = free_port()
        command = self.command("run", "distributed.dp_shard=1", "distributed.tp=1")
        ranks = [start(command, self.folder, env=rank_environment(rank, 2, port, PPTRAIN_ISA=isa))
                 for rank, isa in enumerate(("baseline", "avx2"))]
        codes, outputs = self.ended(ranks)
        self.assertEqual(codes, [2, 2], outputs)
        self.assertIn("the instruction set (PPTRAIN_ISA) is avx2, on rank 0 baseline", "".join(err for _, err in outputs))

    def test_more_processes_than_ranks_are_refused(self):
        codes, outputs = self.ended(self.launch(9, "run"))
        self.assertEqual(codes, [2] * 9)
        said = "".join(err for _, err in outputs)
        self.assertEqual(said.count("the job needs 8 ranks"), 1, said)

    def test_an_error_is_said(self):
        codes, outputs = self.ended(self.launch(3, "run", "optimizer.lr=1e38", "train.max_skipped_steps=0"))
        self.assertEqual(codes, [1, 1, 1], outputs)
        said = "".join(err for _, err in outputs)
        self.assertIn("in a row", said)
        self.assertNotIn("pptrain: pptrain:", said)

    def test_a_killed_process_ends_the_others(self):
        processes = self.launch(3, "run", "train.steps=100000")
        wait_for_steps(processes, self.folder / "run", 3)
        processes[1].send_signal(signal.SIGKILL)
        codes, outputs = self.ended(processes, seconds=10)
        self.assertEqual(codes, [1, -signal.SIGKILL, 1], outputs)
        self.assertRegex("".join(err for _, err in outputs), r"rank [234]")

    def test_a_signal_to_one_process_stops_all(self):
        processes = self.launch(3, "run", "train.steps=100000")
        wait_for_steps(processes, self.folder / "run", 3)
        processes[2].send_signal(signal.SIGTERM)
        codes, outputs = self.ended(processes, seconds=20)
        self.assertEqual(codes, [3, 3, 3], outputs)
        self.assertEqual(json.loads((self.folder / "run/end.json").read_text())["how"], "stopped")

    def test_what_one_process_refuses_is_said_once(self):
        codes, outputs = self.ended(self.launch(3, "run", "data.path='nothing.txt'"))
        self.assertEqual(codes, [2, 2, 2], outputs)
        self.assertEqual("".join(err for _, err in outputs).count("does not exist"), 1, outputs)


if __name__ == "__main__":
    unittest.main()
