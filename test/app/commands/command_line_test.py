"""The program as its users meet it: subcommands, exit codes, launchers, signals, resuming after a kill.

Usage: command_line_test.py PPTRAIN MPIEXEC [unittest arguments]; MPIEXEC is "" in a build without MPI
"""

import array
import csv
import ctypes
import json
import math
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest
import xml.dom.minidom

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import pptrain  # noqa: E402
from pptrain import (SOURCE, TEXT, checksums, environment, free_port, job, latest, mpi_command,  # noqa: E402
                     rank_environment, records, run, sets, start, start_ranks, temporary_folder, wait_for_steps)

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
MPIEXEC = sys.argv.pop(1)

JOB = job(model={"num_key_value_heads": 2}, train={"grad_clip": 0.5}, data={"val_fraction": 0.2}, optimizer={"lr": 1e-2},
          eval={"interval": 2, "batches": 2}, metrics={"log_interval": 1})


def seconds(work):
    before = time.monotonic()
    work()
    return time.monotonic() - before


def has_gpu_driver():
    try:
        return ctypes.CDLL("libcuda.so.1") is not None
    except OSError:
        return False


with_mpi = unittest.skipUnless(MPIEXEC, "built without MPI")


class Case(pptrain.Case):
    own_start = False  # of a command: not forked from a loaded program

    def setUp(self):
        super().setUp()
        self.job = self.folder / "job.toml"
        self.job.write_text(JOB)

    def arguments(self, run_dir, *settings):
        return ["--config", str(self.job), *sets(f'run.dir="{self.folder / run_dir}"', *settings)]

    def run_command(self, *command, code=0, timeout=120, cwd=None, own_start=None, **env):
        own_start = self.own_start if own_start is None else own_start
        return run(command, cwd or self.folder, code=code, timeout=timeout, env=environment(**env), own_start=own_start)

    def pptrain(self, *arguments, code=0, own_start=None, **env):
        return self.run_command(PPTRAIN, *arguments, code=code, own_start=own_start, **env)

    def train(self, run_dir, *settings, code=0, own_start=None):
        return self.pptrain(*self.arguments(run_dir, *settings), code=code, own_start=own_start)

    def mpirun(self, ranks, run_dir, *settings, code=0):
        return self.run_command(*mpi_command(MPIEXEC, ranks), PPTRAIN, *self.arguments(run_dir, *settings), code=code)

    def numbers(self, run_dir):
        """The results that must not depend on the layout: each step's metrics and every stored tensor's checksum."""
        keys = ("step", "loss", "grad_norm", "lr", "tokens", "eval_loss")
        figures = [{k: record[k] for k in keys if k in record}
                   for record in records(self.folder / run_dir) if "start" not in record]
        tensors = checksums(latest(self.folder / run_dir))
        self.assertGreater(len(figures), 3)
        self.assertGreater(len(tensors), 30)
        return figures, tensors

    def own_lines(self, error):
        """The program's output without the launcher's report."""
        return error.split("-----")[0].splitlines()

    def start_torchrun(self, *commands):
        return start_ranks([[PPTRAIN, *command] for command in commands], self.folder, own_start=True)

    def start_and_wait_for(self, command, run_dir, step):
        process = start(command, self.folder)
        wait_for_steps([process], self.folder / run_dir, step)
        return process

    def ranks(self):
        """The pptrain processes that run a job of this test, in the order of their start."""
        found = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                program, *arguments = (process / "cmdline").read_bytes().decode().split("\0")
            except OSError:  # it has ended
                continue
            if program == str(PPTRAIN) and any(str(self.folder) in argument for argument in arguments):
                found.append(int(process.name))
        return sorted(found)

    def stop_at_step(self, step, run_dir, *settings):
        process = self.start_and_wait_for([PPTRAIN, *self.arguments(run_dir, *settings)], run_dir, step)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 3, out + err)
        return out

    def starts(self, run_dir):
        return [record for record in records(self.folder / run_dir) if "start" in record]


class CommandLine(Case):
    @classmethod
    def setUpClass(cls):
        cls.whole = temporary_folder(cls.addClassCleanup)
        (cls.whole / "job.toml").write_text(JOB)
        cls.whole_said = run([PPTRAIN, "--config", "job.toml", *sets("run.dir=run")], cls.whole)

    def copy_whole(self, run_dir):
        """The results of training the unchanged job, made once for all tests. Its output is in whole_said."""
        shutil.copytree(self.whole / "run", self.folder / run_dir)

    # --- subcommands -------------------------------------------------------------------------------------------------

    def test_reference_is_the_shipped_one(self):
        self.assertEqual(self.pptrain("config", "--reference").stdout, (SOURCE / "configs/reference.toml").read_text())
        self.assertEqual(self.pptrain("config", "--schema").stdout, (SOURCE / "configs/schema.json").read_text())

    def test_version(self):
        # With a launcher's variables and no visible GPU: the command makes no world and no CUDA context.
        lines = self.pptrain("--version", CUDA_VISIBLE_DEVICES="", RANK=1, WORLD_SIZE=2).stdout.splitlines()
        version = re.search(r"project\(pptrain VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text())[1]
        self.assertEqual(lines[0], f"pptrain {version}")
        facts = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines[1:]}
        self.assertLessEqual({"built", "LibTorch", "MPI", "CUDA", "libraries", "CPU", "GPUs"}, set(facts))
        self.assertRegex(facts["LibTorch"], r"^\d+\.\d+\.\d+")
        self.assertEqual(facts["MPI"] == "built without", not MPIEXEC)
        self.assertEqual(facts["GPUs"], "none")
        if "commit" in facts:
            commits = subprocess.run(["git", "-C", SOURCE, "rev-parse", facts["commit"].split(",")[0]], capture_output=True)
            self.assertEqual(commits.returncode, 0, facts["commit"])

    def test_what_is_no_quick_answer_needs_the_whole_program(self):
        alone = self.folder / "pptrain"
        shutil.copy(PPTRAIN, alone)
        self.assertIn("pptrain_whole", self.run_command(alone, "check", "--config", self.job, code=1).stderr)
        # The program asks the processor at run time; the build machine does not matter.
        self.assertIn("pptrain_whole", self.run_command(alone, "--version", ATEN_CPU_CAPABILITY="default", code=1).stderr)
        self.assertIn("ATen DEFAULT", self.pptrain("--version", ATEN_CPU_CAPABILITY="default").stdout)
        self.pptrain("config", "--nothing", code=2)

    def test_check_says_whether_the_job_would_start_here(self):
        out = self.pptrain("check", "--config", self.job).stdout
        lines = out.splitlines()
        self.assertEqual([line.split()[:2] for line in lines[:6]],
                         [["job", "OK"], ["world", "OK"], ["device", "OK"], ["memory", "OK"], ["data", "OK"], ["run", "OK"]])
        self.assertIn("2 ranks (pp 2)", lines[1])
        self.assertIn(f"1 file, {TEXT.stat().st_size:,} bytes", lines[4])
        self.assertIn("a new run in runs/default", lines[5])
        self.assertEqual(lines[6:], ["It would start here."])
        needed, program = map(float, re.search(r"needs ([\d.]+) MB, and ([\d.]+) MB in each process for the program;", lines[3]).groups())
        self.assertGreater(program, 50)  # LibTorch alone; the job's bytes are separate
        self.assertGreater(needed, 0.1)
        gpu = self.pptrain("check", "--config", self.job, "--set", "run.device=cuda", code=None)
        self.assertEqual(gpu.returncode, 4 if "would not start" in gpu.stdout else 0)
        self.assertRegex(gpu.stdout, r"(?m)^device +(no +run.device = .cuda., but no GPU was found here|OK +cuda, \d+ GPU)")

    def test_check_prints_the_resolved_job_and_its_sizes(self):
        out = self.pptrain("check", "--config", self.job, "--resolved").stdout
        self.assertIn("num_hidden_layers = 4", out)
        # 2 embeddings, 4 blocks (q, o: 32 x 32; k, v: 16 x 32; 3 x 48 x 32; two norms), the last norm, of 2 stages
        parameters = [int(line.split()[3]) for line in out.splitlines() if re.match(r"#\s+\d", line)]
        self.assertEqual(sum(parameters), 2 * 256 * 32 + 4 * (2 * 1024 + 2 * 512 + 3 * 48 * 32 + 64) + 32)

    def test_every_error_of_a_job_at_once(self):
        self.job.write_text(JOB.replace("seq_len = 16", "seq_len = -1").replace("lr = 0.01", "lrr = 0.01"))
        error = self.pptrain("--config", self.job, code=2).stderr
        self.assertRegex(error, r"job\.toml:\d+:\d+: train\.seq_len")
        self.assertRegex(error, r"job\.toml:\d+:\d+: optimizer\.lrr")
        self.assertIn("optimizer.lr", error)

    def plan(self, *arguments, **env):
        """With costs that do not depend on this machine."""
        return self.pptrain("plan", "--config", self.job, "--costs", "modelled", *arguments, **env)

    def test_plan(self):
        for columns in (80, 200):
            text = self.plan(COLUMNS=columns).stdout
            self.assertIn("F0", text)
            self.assertIn("costs: modelled for cpu", text)
            self.assertLessEqual(max(map(len, text.splitlines())), columns)
        # p = 2, m = 4: (p - 1) / (m + p - 1)
        plan = json.loads(self.plan("--format", "json").stdout)
        self.assertAlmostEqual(plan["uniform_bubble"], 0.2)
        self.assertEqual([rank["in_flight"]["activations"] for rank in plan["per_rank"]], [2, 1])
        self.assertNotIn("actions", plan)
        for rank in plan["per_rank"]:
            parts = ["busy", "fill", "steady", "drain", "barrier", "optimizer_time"]
            self.assertAlmostEqual(sum(rank[part] for part in parts), plan["predicted_step_time"])
        for stage in plan["per_stage"]:
            self.assertAlmostEqual(stage["backward_input"] + stage["backward_weight"], stage["backward"])
            self.assertGreater(stage["layers"], 0)
        full = json.loads(self.plan("--format", "json", "--actions").stdout)
        self.assertEqual([actions[0]["action"] for actions in full.pop("actions")], ["0F0", "1RECV_F0"])
        self.assertEqual({**full, "program_bytes": plan["program_bytes"]}, plan)  # the program itself is measured at each start
        self.pptrain("plan", "--config", self.job, "--actions", code=2)
        steps = self.pptrain("plan", "--config", self.job, "--format", "csv").stdout
        self.assertEqual(len(steps.strip().splitlines()), 2)
        lists = [self.pptrain("plan", "--config", self.job, "--after", name).stdout for name in ("add_communication", "add_unshard")]
        self.assertTrue(all("RECV_F" in text for text in lists), lists)
        self.assertEqual(["REDUCE_GRAD" in text for text in lists], [False, True])
        self.assertIn("hoist_receives", self.pptrain("plan", "--config", self.job, "--after", "none", code=2).stderr)
        self.pptrain("plan", "--config", self.job, "--after", "split_pairs", "--compare", self.job, code=2)
        svg = self.plan("--format", "svg").stdout
        self.assertEqual(xml.dom.minidom.parseString(svg).documentElement.tagName, "svg")
        trace = json.loads(self.plan("--format", "trace").stdout)
        passes = [e for e in trace["traceEvents"] if e["ph"] == "X" and "REDUCE_GRAD" not in e["name"]]
        self.assertEqual(len(passes), 2 * 2 * 4)

    def test_plan_counts_the_program_itself(self):
        json_plan = json.loads(self.pptrain("plan", "--config", self.job, "--format", "json").stdout)
        self.assertTrue(5e7 < json_plan["program_bytes"] < 5e8, json_plan["program_bytes"])
        text = self.plan().stdout
        self.assertRegex(text, r"about \d+ MB in each process for the program")
        for_gpu = self.pptrain("plan", "--config", self.job, "--set", "run.device=cuda", "--profile", "h100").stdout
        self.assertNotIn("in each process", for_gpu)

    def test_plan_takes_costs_from_a_device_or_a_trace(self):
        h100 = self.pptrain("plan", "--config", self.job, "--device", "H100").stdout
        self.assertIn("modelled for H100", h100)
        error = self.pptrain("plan", "--config", self.job, "--device", "h300", code=2).stderr
        self.assertIn("h100, h200", error)
        measured = self.pptrain("plan", "--config", self.job).stdout
        self.assertRegex(measured, r"costs: measured on this machine in \d+\.\d s, \d ranks? at once")
        self.assertRegex(measured, r"about \d+ MB in each process for the program")
        error = self.pptrain("plan", "--config", self.job, "--costs", "modelled", "--device", "cpu", code=2).stderr
        self.assertIn("excludes", error)
        ranking = self.plan("--search", "--all").stdout
        self.assertIn("zb_h2", ranking)
        ranked = json.loads(self.plan("--search", "--format", "json").stdout)["ranking"]
        self.assertIn("zb_h2", [row["pp_schedule"] for row in ranked])
        self.assertEqual(ranking.count("distributed.pp_schedule="), len(ranked))
        self.assertIn(f"{len(ranked) - 10} more: --all", self.plan("--search").stdout)
        rows = list(csv.DictReader(self.plan("--search", "--format", "csv").stdout.splitlines()))
        self.assertEqual([row["set"].split() for row in rows], [row["set"] for row in ranked])
        # The settings that a row prints give that row's step time.
        last = ranked[-1]
        settings = [part for key in last["set"] for part in ("--set", key)]
        plan = json.loads(self.plan("--format", "json", *settings).stdout)
        self.assertAlmostEqual(plan["predicted_step_time"], last["step_time"])
        self.plan("--search", "--format", "svg", code=2)
        self.train("traced", "profile.trace=true", "train.steps=5")
        trace = self.folder / "traced/trace.json"
        compared = self.pptrain("plan", "--config", self.job, "--profile", trace, "--compare", trace).stdout
        self.assertRegex(compared, r"rank 0 forward, s +\S+ +\S+ +1\.000")

    def test_plan_says_first_whether_the_job_fits_and_how_sure_it_is(self):
        lines = self.plan().stdout.splitlines()
        self.assertRegex(lines[1], r"^step \S+ \S+: [\d,]+ tokens/s, MFU \S+ %; bubble")
        self.assertRegex(lines[2], r"^memory: fits this host; rank 0 needs \S+ MB$")
        self.assertEqual(lines[3], "how sure: modelled; no pass was measured")
        several = self.pptrain("plan", "--config", self.job, "--device", "h100").stdout
        self.assertIn("links between GPUs never measured", several.splitlines()[3])
        small = self.pptrain("plan", "--config", self.job, "--device", "h100", "--memory-gb", "1e-4").stdout
        self.assertRegex(small.splitlines()[2], r"^memory: DOES NOT FIT: rank 0 needs \S+ MB; it has 0\.1 MB$")
        found = json.loads(self.pptrain("plan", "--config", self.job, "--device", "h100", "--memory-gb", "1e-4", "--format", "json").stdout)
        self.assertFalse(found["memory"]["fits"])
        # check asks the same function, for the GPUs of this machine or for the modelled ones.
        large = ["run.device=cuda", "model.hidden_size=65536", "model.intermediate_size=262144", "model.num_attention_heads=512"]
        check = self.pptrain("check", *self.arguments("run", *large), code=4).stdout
        self.assertRegex(check, r"(?m)^memory +no +rank \d needs [\d.]+ GB; .* has [\d.]+ GB\. pptrain plan says what makes it fit")

    def test_plan_counts_the_cores_that_ranks_share(self):
        four = ["--set", "distributed.pp=4", "--set", "model.num_hidden_layers=8", "--set", "train.grad_accum_steps=16", "--format", "json"]
        alone, shared = (json.loads(self.plan(*four, "--cores", cores).stdout) for cores in (4, 1))
        self.assertIn("4 threads share 1 core", shared["costs"])
        self.assertNotIn("share", alone["costs"])
        self.assertGreater(shared["predicted_step_time"], 2 * alone["predicted_step_time"])
        # By default it uses the cores that the process may use: here one.
        one = str(min(os.sched_getaffinity(0)))
        bound = json.loads(self.run_command("taskset", "-c", one, PPTRAIN, "plan", "--config", self.job, "--costs", "modelled", *four).stdout)
        self.assertEqual(bound["predicted_step_time"], shared["predicted_step_time"])
        for command, code in (("doctor", 1), ("check", 0)):
            said = self.run_command("taskset", "-c", one, PPTRAIN, command, *self.arguments("run"), code=code).stdout
            self.assertRegex(said, r"2 threads of 2 ranks on 1 core\b", command)
        self.assertIn("2 threads of 2 ranks on 1 core", self.run_command("taskset", "-c", one, PPTRAIN, *self.arguments("run")).stdout)

    def test_plan_prices_processes_with_several_ranks(self):
        """Ranks of a process share its cores; a shorter pipeline is taken where it fits."""
        cut = ["--set", "distributed.tp=2", "--set", "distributed.pp=1", "--set", "train.grad_accum_steps=4"]
        times = [json.loads(self.plan(*cut, "--processes", n, "--format", "json").stdout)["predicted_step_time"] for n in (2, 1)]
        self.assertGreater(times[1], 1.9 * times[0])
        self.assertRegex(self.plan(*cut, "--processes", 1).stdout, r"^2 ranks in 1 process: 2; memory of a process: at most 0\.\d+ GB")
        four = ["--set", "distributed.pp=4", "--set", "model.num_hidden_layers=8"]
        fitted = self.plan(*four, "--processes", 3).stdout
        self.assertTrue(fitted.startswith("4 ranks, but 3 processes: the pipeline has 3 ranks instead of 4, with the same bits\n"), fitted)
        spread = self.plan(*four, "--set", "distributed.pp_head=spread", "--processes", 3).stdout
        self.assertTrue(spread.startswith("4 ranks in 3 processes: 1 + 1 + 2; memory"), spread)
        self.pptrain("plan", "--config", self.job, "--processes", 3, "--world", 2, code=2)
        for shape in ("text", "json"):
            self.assertIn("on GPUs each of the 2 ranks", self.pptrain("plan", "--config", self.job, "--device", "h100", "--set", "run.device=cuda",
                                                                        *cut[:4], "--processes", 1, "--format", shape, code=2).stderr)

    def test_two_plans_side_by_side(self):
        other = self.folder / "other.toml"
        other.write_text(self.job.read_text().replace("grad_accum_steps = 4", "grad_accum_steps = 8"))
        self.assertNotEqual(other.read_text(), self.job.read_text())
        text = self.plan("--compare", other).stdout
        self.assertRegex(text, r"^ +job\.toml +other\.toml +ratio\n")
        self.assertRegex(text, r"(?m)^tokens/s +[\d,]+ +[\d,]+ +1\.\d+$")
        self.assertIn("no such", self.plan("--compare", self.folder / "absent.toml", code=2).stderr.lower())

    def test_plan_searches_meshes(self):
        search = ["plan", "--config", self.job, "--costs", "modelled", "--search", "--world", "4", "--memory-gb", "1"]
        text = self.pptrain(*search).stdout
        self.assertIn("why the others lose", text)
        found = json.loads(self.pptrain(*search, "--format", "json").stdout)
        # The best row is a job: its plan predicts the same as the search.
        best = found["ranking"][0]
        keys = re.search(r"^1 .*\n((?:     --set .*\n)+)", text, re.MULTILINE).group(1).replace("\\\n", " ").split()
        self.assertEqual(keys[1::2], best["set"])
        plan = json.loads(self.plan("--format", "json", *keys).stdout)
        self.assertAlmostEqual(plan["predicted_step_time"], best["step_time"])
        self.assertEqual({key: plan["mesh"][key] for key in plan["mesh"]}, {key: best[key] for key in plan["mesh"]})
        self.assertEqual(max(rank["bytes"]["total"] for rank in plan["per_rank"]), best["bytes"]["total"])
        for world in ("2147483647", "2147483648", "0"):
            self.assertIn("--world", self.pptrain(*search[:-4], "--world", world, code=2).stderr)

    def test_the_recipes(self):
        for recipe in sorted((SOURCE / "configs").glob("*.toml")):
            if recipe.name in ("reference.toml", "finetune.toml"):  # reads a directory that finetune_test.py makes
                continue
            with self.subTest(recipe=recipe.name):
                plan = self.run_command(PPTRAIN, "plan", "--config", recipe, "--costs", "modelled", cwd=SOURCE).stdout
                self.assertIn("tokens/s", plan)
                if "cuda" in recipe.read_text() or recipe.name == "text_to_text.toml":  # its data are made by test/scripts
                    continue
                self.run_command(PPTRAIN, "--config", recipe, "--set", f"run.dir={self.folder / recipe.stem}",
                                 *sets("train.steps=2", "train.seq_len=64", "eval.interval=0", "data.val_fraction=0",
                                       "metrics.peak_tflops=1"), cwd=SOURCE)

    def test_bad_arguments(self):
        self.pptrain("--config", self.folder / "absent.toml", code=2)
        self.pptrain("--no-such-flag", code=2)
        self.pptrain(code=2)
        self.pptrain("--help")
        self.assertIn("come after the subcommand", self.pptrain("--set", "train.steps=5", "check", "--config", self.job, code=2).stderr)

    def test_arguments_that_say_how_to_write_them(self):
        for arguments, expected in {
            ("job.toml",): "did you mean --config job.toml?",
            ("check", "job.toml"): "did you mean --config job.toml?",
            ("--confg", "job.toml"): "not expected: --confg job.toml\ndid you mean --config?",
            ("plan", "--config", self.job, "--serch"): "did you mean --search?",
            ("--config", self.job, "--train.steps=5"): "did you mean --set train.steps=5?",
            ("--config", self.job, "--train.steps", "5"): "did you mean --set train.steps=5?",
            ("--config", self.job, "--learning_rate=3e-4"): "did you mean --set optimizer.lr=3e-4?",
            ("--config", self.job, "train.steps=5"): "did you mean --set train.steps=5?",
        }.items():
            with self.subTest(arguments):
                self.assertIn(expected, self.pptrain(*arguments, code=2).stderr)
        for arguments in (("--no-such-flag",), ("plan", "--config", self.job, "--format", "txt")):
            self.assertNotIn("--set", self.pptrain(*arguments, code=2).stderr.replace("--set come", ""))

    def test_doctor(self):
        plain = self.pptrain("doctor", *self.arguments("run"), code=None).stdout.splitlines()
        self.assertIn("an activation of 0.00 MB", plain[-2])
        megabytes = []  # size of an activation; each tensor-parallel rank sends a slice
        for tp in (1, 2):
            many = self.arguments("run", "train.micro_batch_size=512", f"distributed.tp={tp}")
            out = self.pptrain("doctor", *many, code=None).stdout.splitlines()
            self.assertEqual([line.split()[0] for line in out[:-1]],
                             ["memory", "cores", "disk", "device", "transport", "clocks", "links"])
            links = re.match(r"links +\w+ +the slowest, at rank \d: \d+ us, [\d.e-]+ Gb/s; an activation of (\d+\.\d\d) MB", out[-2])
            megabytes.append(float(links[1]))
        self.assertGreater(megabytes[1], 0.2)
        self.assertAlmostEqual(megabytes[0], 2 * megabytes[1], delta=0.02)
        crowded = self.pptrain("doctor", *self.arguments("run", "run.threads=64"), code=1).stdout
        self.assertRegex(crowded, r"cores +no +host .*: 128 threads of 2 ranks on \d+ cores")
        self.assertIn("This job should not run so.", crowded)
        for settings, at_once in ((("checkpoint.keep_last_n=2",), 3), (("checkpoint.keep_last_n=0",), 250),
                                  (("checkpoint.keep_last_n=2", "checkpoint.keep_best_n=5"), 8),
                                  (("checkpoint.keep_last_n=0", "checkpoint.keep_best_n=5"), 1000),
                                  (("checkpoint.interval=1000", "checkpoint.minutes=1", "checkpoint.keep_last_n=5"), 6),
                                  (("checkpoint.interval=1000", "checkpoint.keep_last_n=2", "checkpoint.keep_best_n=3"), 6)):
            out = self.pptrain("doctor", *self.arguments("run", "train.steps=1000", "checkpoint.interval=4", "eval.interval=1", *settings),
                               code=None).stdout
            self.assertRegex(out, rf"a checkpoint takes [\d.]+ GB, {at_once} at once")
        self.assertFalse((self.folder / "run").exists())

    @with_mpi
    def test_doctor_of_several_processes(self):
        done = self.run_command(*mpi_command(MPIEXEC, 2), PPTRAIN, "doctor", *self.arguments("run"), code=None)
        self.assertEqual(done.stdout.count("This job"), 1, done.stderr)
        self.assertRegex(done.stdout, r"clocks +OK +\d\.\d+ s apart")

    def test_more_steps_tell_what_becomes_of_the_rate(self):
        self.copy_whole("run")
        out = self.train("run", "train.steps=8").stdout
        self.assertRegex(out, r"goes on with changed settings: train.steps was 4, is 8; "
                              r"learning rate of step 5: \S+ before, \S+ now")

    def test_a_report_lies_in_the_run(self):
        self.copy_whole("run")
        said = self.pptrain("report", self.folder / "run").stdout.strip()
        self.assertEqual(said, f"file://{self.folder}/run/report.html")
        self.assertIn("<html", (self.folder / "run/report.html").read_text()[:200])
        page = self.pptrain("report", self.folder / "run", "-o", "/dev/stdout").stdout
        self.assertTrue(page.endswith("</html>\n"), page[-200:])

    def test_a_start_with_nothing_to_do_moves_nothing(self):
        self.train("run", "profile.trace=true", "profile.first_step=1")
        before = sorted((self.folder / "run").rglob("*"))
        self.assertIn(self.folder / "run/trace.json", before)
        self.assertIn("nothing to do", self.train("run", "profile.trace=true", "profile.first_step=1").stdout)
        self.assertEqual(before, sorted((self.folder / "run").rglob("*")))
        self.train("run", "checkpoint.resume=restart")
        self.assertFalse((self.folder / "run/trace.json").exists())
        self.assertTrue((self.folder / "run/trace.1.json").exists())

    def test_the_search_writes_the_job_of_a_row(self):
        best = self.folder / "best.toml"
        rows = list(csv.DictReader(self.plan("--search", "--format", "csv", "--write", "best.toml", "--pick", "2").stdout.splitlines()))
        self.assertIn(f'pp_schedule = "{rows[1]["pp_schedule"]}"', best.read_text())
        self.pptrain("check", "--config", best)
        # Keys of the job, or of --set, that do nothing on the row's mesh.
        self.job.write_text(job(distributed={"pp_schedule": "auto", "pp_memory_gb": 1}))
        self.plan("--search", "--write", "idle.toml")
        self.pptrain("check", "--config", "idle.toml")
        self.job.write_text(JOB)
        sharded = ("--set", "distributed.dp=2", "--set", "distributed.reshard_after_forward=true")
        for row in "1", "2":
            self.plan("--search", "--world", "4", *sharded, "--pick", row, "--write", "sharded.toml")
            self.pptrain("check", "--config", "sharded.toml")
        bounded = ("--set", "distributed.pp_schedule=auto", "--set", "distributed.pp_memory_gb = 1", "--set", "distributed.dp = 1")
        self.plan("--search", *bounded, "--write", "bounded.toml")
        self.pptrain("check", "--config", "bounded.toml")
        self.assertIn("--pick 999", self.plan("--search", "--write", best, "--pick", "999", code=2).stderr)
        self.assertIn("--write needs --search", self.plan("--write", best, code=2).stderr)
        # A search over meshes writes the refined job unless --pick names a row. Rows do not take the job's head and slices.
        search = ["--search", "--world", "4", "--set", "distributed.pp=2", "--set", "distributed.pp_head=spread"]
        found = json.loads(self.plan(*search, "--format", "json", "--write", best).stdout)
        self.assertEqual(found["refined"]["pp_head"], "spread")
        self.assertIn('pp_head = "spread"', best.read_text())
        self.assertIn("refined: ", self.plan(*search, "--write", best, "--pick", "1").stdout)
        self.assertNotIn('pp_head = "spread"', best.read_text())
        self.pptrain("check", "--config", best)
        rows = list(csv.DictReader(self.plan(*search, "--format", "csv").stdout.splitlines()))
        self.assertEqual([row["row"] for row in rows[:2] + rows[-1:]], ["1", "2", "refined"])
        self.assertEqual(rows[-1]["set"].split(), found["refined"]["set"])

    def test_the_plan_says_what_the_whole_job_takes(self):
        out = self.plan("--price", "3").stdout
        self.assertRegex(out, r"the job: 4 steps, 512 tokens in 0:0\d; each checkpoint [\d.]+ MB; at 3 for a rank's hour: \d+\.\d\d")
        self.assertRegex(self.plan("--watts", "700").stdout, r"; at 700 W a rank: [\d.e-]+ kWh")
        job = json.loads(self.plan("--watts", "700", "--price", "3", "--format", "json").stdout)["job"]
        self.assertAlmostEqual(job["kwh"] / (job["seconds"] / 3600 * 2 * 0.7), 1)
        self.assertAlmostEqual(job["price"] / (job["seconds"] / 3600 * 2 * 3), 1)
        self.copy_whole("run")
        stored = sum(file.stat().st_size for file in latest(self.folder / "run").rglob("*.safetensors"))
        self.assertLess(abs(job["checkpoint_bytes"] / stored - 1), 0.1)

    def test_held_out_data_are_validated_on_at_the_end_at_least(self):
        self.train("run", "eval.interval=0", "data.val_fraction=0.1", "eval.batches=1")
        evaluated = [r for r in records(self.folder / "run") if "eval_loss" in r]
        self.assertEqual([r["step"] for r in evaluated], [4])
        # Every token is a byte.
        self.assertAlmostEqual(evaluated[0]["eval_bits_per_byte"], evaluated[0]["eval_loss"] / math.log(2))
        self.assertIn("validation loss", self.train("other", "eval.interval=0", "data.val_fraction=0", f'data.val_path="{TEXT}"',
                                                    "eval.batches=1").stdout)
        self.train("none", "eval.interval=0", "data.val_fraction=0")
        self.assertFalse([r for r in records(self.folder / "none") if "eval_loss" in r])

    def test_lines_for_debugging(self):
        for word, told in [("comms=debug", "'comms' is no subsystem; the subsystems are schedule, comm, data, checkpoint, memory"),
                           ("comm=loud", "'loud' is no level; the levels are trace, debug, info, warning, error, critical, off")]:
            refused = self.pptrain(*self.arguments("run"), "--log", word, code=2).stderr
            self.assertIn(f"--log {word}: {told}", refused)
        self.assertEqual(self.whole_said.stderr, "")

        # Ranks are threads: each line names its rank.
        out = self.pptrain(*self.arguments("run", "checkpoint.interval=2"), "--log", "trace", "--log", "memory=off").stderr
        lines = [re.fullmatch(r"[\d:.]+ rank ([?\d]) (\w+) (\w+): (.*)", line) for line in out.splitlines()]
        self.assertTrue(all(lines), out)
        said = {(m[2], m[3], m[4]): m[1] for m in lines}
        self.assertEqual({m[1] for m in lines if m[2] not in ("comm", "data")}, {"0", "1"})
        self.assertEqual({m[2] for m in lines}, {"schedule", "comm", "data", "checkpoint"})
        self.assertEqual(said["schedule", "trace", "SEND_F stage 0 microbatch 1"], "0")
        self.assertEqual(said["schedule", "trace", "B stage 1 microbatch 3"], "1")
        for words in (r"comm info: no launcher: 2 ranks are threads", r"comm debug: group pp: ranks 0,1", r"data info: source \(the only one\): ",
                      r"data info: stream 0: \d+ samples an epoch, shuffled", r"data debug: the step begins at sample \d+; stream 0 is in epoch 0",
                      r"checkpoint debug: wrote \S+: \d+ tensors, \d+ bytes", r"checkpoint info: saved '\S+step_2': \d+ files of this rank, \d+ bytes"):
            self.assertRegex(out, words)

        # Ranks are processes with a log file each; a level for one subsystem leaves the others off.
        command = self.arguments("tcp") + ["--log", "comm=debug", "--log", "memory=debug", "--log-dir", "logs"]
        for rank in self.start_torchrun(command, command):
            self.assertEqual(rank.communicate()[1], "")
        for rank in (0, 1):
            text = (self.folder / f"logs/rank_{rank}.log").read_text()
            self.assertRegex(text, rf"rank {rank} comm info: started by torchrun: rank {rank} of 2, {rank} on its host; over TCP")
            self.assertRegex(text, rf"rank {rank} comm debug: TCP link to rank {1 - rank}")
            self.assertRegex(text, rf"rank {rank} memory debug: before step 4: \d+ MB resident in this process, at most \d+ MB so far")
            self.assertNotRegex(text, "schedule|checkpoint|data (info|debug)")

    def test_one_key_is_described(self):
        reference = self.pptrain("config").stdout
        for name in ("train.steps", "lr_schedule.name", "model.rope_scaling.factor"):
            text = self.pptrain("config", name).stdout
            section, described = text.split("\n", 1)
            self.assertEqual(section, f"[{name.rpartition('.')[0]}]")
            self.assertIn(described, reference)
            self.assertIn(f"\n{name.rpartition('.')[2]} = " if f"\n# {name.rpartition('.')[2]}" not in text else "", text)
        section = self.pptrain("config", "checkpoint").stdout
        self.assertTrue(section.startswith("[checkpoint]\n"))
        self.assertIn(section, reference)
        self.assertNotIn("[eval]", section)
        self.assertIn("[[optimizer.groups]]", self.pptrain("config", "optimizer.groups").stdout)
        for name, meant in (("train.step", "train.steps"), ("learning_rate", "optimizer.lr"), ("trian", "train")):
            self.assertEqual(self.pptrain("config", name, code=2).stderr, f"{name}: no key or section of a job; did you mean {meant}?\n")

    def test_the_process_is_called_pptrain(self):
        process = start([PPTRAIN, *self.arguments("named", "train.steps=100000")], self.folder)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        wait_for_steps([process], self.folder / "named", 1)
        self.assertEqual(pathlib.Path(f"/proc/{process.pid}/comm").read_text(), "pptrain\n")

    def test_eval_speaks_for_itself(self):
        self.copy_whole("run")
        done = self.pptrain("eval", "run", "--set", "data.val_fraction=0", code=2)
        self.assertIn("data.val_fraction", done.stderr)
        self.assertIn("there is no validation data: give data.val_fraction or data.val_path", done.stderr)
        self.assertNotIn("--set eval", done.stderr)

    def test_words_of_other_programs(self):
        self.assertEqual(self.pptrain("help").stdout, self.pptrain("--help").stdout)
        self.assertEqual(self.pptrain("help", "plan").stdout, self.pptrain("plan", "--help").stdout)
        self.assertEqual(self.pptrain("-V").stdout, self.pptrain("--version").stdout)
        self.assertIn("done: 4 steps", self.pptrain("train", *self.arguments("run")).stdout)

    def test_a_run_is_named_by_its_folder(self):
        self.copy_whole("first")
        run_dir = self.folder / "first"
        # Without --config and without the --set of the training.
        result = json.loads(self.pptrain("eval", run_dir, "--json").stdout)
        self.assertEqual(result["loss"], [r for r in records(run_dir) if "eval_loss" in r][-1]["eval_loss"])
        for named in ([run_dir], [str(run_dir) + "/"], [f"--checkpoint={run_dir}"], [f"--checkpoint={latest(run_dir)}"]):
            out = json.loads(self.pptrain("generate", *named, "--prompt", "hi", "--json", "--greedy", "--max-tokens", 5).stdout)
            self.assertEqual(len(out["ids"]), 5, named)
        self.assertEqual(self.pptrain("verify", run_dir).stdout.count(": sound"), 1)
        self.train("many", "checkpoint.interval=2", "checkpoint.keep_last_n=0")
        self.assertIn("step_2", json.loads(self.pptrain("eval", self.folder / "many/checkpoints/step_2/", "--json").stdout)["weights"])
        refused = self.pptrain("resume", self.folder / "many/checkpoints/step_2", code=2).stderr
        self.assertIn(f"is one checkpoint, and a run goes on from its newest one: pptrain resume {self.folder}/many.", refused)
        self.assertIn("nothing to do", self.pptrain("resume", run_dir).stdout)
        self.assertIn("done: 6 steps", self.pptrain("resume", run_dir, "--set", "train.steps=6").stdout)
        self.assertIn("no run has used this folder", self.pptrain("resume", self.folder / "none", code=2).stderr)
        (self.folder / "empty").mkdir()
        self.assertIn("no run has used this folder", self.pptrain("eval", self.folder / "empty", code=2).stderr)
        self.assertIn("name two jobs", self.pptrain("eval", run_dir, "--config", self.job, code=2).stderr)
        self.assertIn("give a run's folder", self.pptrain("generate", "--prompt", "hi", code=2).stderr)

    def test_a_finished_run_that_began_with_restart_is_not_started_over(self):
        self.train("run", "checkpoint.resume=restart")
        self.assertIn("nothing to do", self.pptrain("resume", self.folder / "run").stdout)

    def test_a_job_too_large_is_refused_before_it_allocates(self):
        large = ["model.hidden_size=65536", "model.intermediate_size=262144", "model.num_hidden_layers=80", "model.num_attention_heads=64"]
        refused = self.train("large", *large, code=2).stderr
        self.assertRegex(refused, r"the job needs [\d,.]+ GB on this host \(2 ranks\), and [\d.]+ GB are available\. .*run\.force_memory = true")
        self.assertFalse((self.folder / "large").exists())
        out = self.pptrain("check", *self.arguments("large", *large), code=4).stdout
        self.assertRegex(out, r"(?m)^memory +no +the job needs")
        self.assertIn("It would not start here.", out)

    @with_mpi
    def test_a_job_too_large_for_the_host_of_several_processes_is_said_once(self):
        large = ["model.hidden_size=65536", "model.intermediate_size=262144", "model.num_hidden_layers=80", "model.num_attention_heads=64"]
        refused = self.mpirun(2, "large", *large, code=2).stderr
        self.assertEqual(refused.count("GB on this host (2 ranks)"), 1)

    def test_a_folder_of_token_files(self):
        text = TEXT.read_bytes()[:20000]
        (self.folder / "whole.txt").write_bytes(text)
        (self.folder / "shards").mkdir()
        for i in range(4):
            (self.folder / f"shards/{i}.txt").write_bytes(text[5000 * i:5000 * (i + 1)])
        self.train("whole", f"data.path={self.folder / 'whole.txt'}")
        self.train("parts", f"data.path={self.folder / 'shards'}")
        self.assertEqual(self.numbers("whole"), self.numbers("parts"))

    def test_a_warm_up_longer_than_the_run_is_a_warning(self):
        for out in (self.train("run", "lr_schedule.warmup_steps=9").stdout,
                    self.pptrain("check", "--config", self.job, "--set", "lr_schedule.warmup_steps=9").stdout):
            self.assertIn("warning: lr_schedule.warmup_steps = 9 is more than train.steps = 4", out)

    def test_validation_without_a_token_to_predict(self):
        (self.folder / "ends.txt").write_text("\n" * 500)  # documents of one token
        self.job.write_text(JOB.replace("val_fraction = 0.2", f'val_path = "{self.folder}/ends.txt"\ndocument_end = 10'))
        out = self.train("run", "checkpoint.keep_best_n=1").stdout
        self.assertEqual(out.count("the validation data have no token to predict"), 2)
        self.assertIn("done: 4 steps; checkpoint in", out)
        self.assertNotIn("validation loss", out)
        self.assertEqual([], [record for record in records(self.folder / "run") if "eval_loss" in record])
        done = self.pptrain("eval", *self.arguments("run"), code=2)
        self.assertEqual(done.stderr.count("the validation data have no token to predict"), 1)
        self.assertEqual(done.stdout, "")
        # If only one of two sources has tokens to predict, there is still a loss.
        sources = "".join(f'[[data.sources]]\nname = "{name}"\npath = "{TEXT}"\n{keys}\n'
                          for name, keys in {"text": "val_fraction = 0.2", "ends": f'val_path = "{self.folder}/ends.txt"'}.items())
        self.job.write_text(re.sub(r"\[data\][^\[]*", "[data]\ndocument_end = 10\n" + sources, JOB))
        out = self.train("two").stdout
        self.assertEqual(out.count("the validation data of ends have no token to predict"), 2)
        self.assertIn("done: 4 steps, validation loss", out)
        evaluated = [record for record in records(self.folder / "two") if "eval_loss" in record]
        self.assertEqual([["text"]] * 2, [[*record["eval_sources"]] for record in evaluated])
        result = json.loads(self.pptrain("eval", *self.arguments("two"), "--json").stdout)
        self.assertEqual([source["tokens"] > 0 for source in result["sources"]], [True, False])
        self.assertNotIn("loss", result["sources"][1])

    def test_data_that_are_seldom_meant_are_a_warning(self):
        def check(*settings):
            return self.pptrain("check", *self.arguments("run", *settings)).stdout

        self.assertNotIn("warning", check())
        out = check("data.val_fraction=0", f"data.val_path={TEXT}")
        self.assertIn(f'warning: data.val_path has "{TEXT}", which data.path has too', out)
        (self.folder / "link.txt").symlink_to(TEXT)
        self.assertIn("which data.path has too", check("data.val_fraction=0", f"data.val_path={self.folder / 'link.txt'}"))
        wide = self.folder / "wide.bin"
        wide.write_bytes(array.array("I", [i % 250 for i in range(2000)]).tobytes())
        out = check(f"data.path={wide}", "data.format=bin")
        self.assertIn('data.path: every second token is 0, as where ids of uint32 are read as uint16: is it data.dtype = "uint32"?', out)
        self.assertNotIn("warning", check(f"data.path={wide}", "data.format=bin", "data.dtype=uint32"))
        wide.write_bytes(array.array("H", [i % 250 for i in range(2000)]).tobytes())
        self.assertNotIn("warning", check(f"data.path={wide}", "data.format=bin"))

    # --- launchers ---------------------------------------------------------------------------------------------------

    @with_mpi
    def test_mpirun_gives_the_bits_of_threads(self):
        for name, settings in {
            "plain": [],
            "wide": ["distributed.pp=3", "distributed.pp_schedule=gpipe", "train.dtype=fp32"],
            "tied": ["model.tie_word_embeddings=true"],
            "replicas": ["distributed.dp_replicate=2"],
            "searched": ["distributed.pp_schedule=search"],
            "spread": ["distributed.pp_head=spread", "distributed.pp_schedule=auto"],
        }.items():
            with self.subTest(name):
                ranks = {"wide": 3, "replicas": 4}.get(name, 2)
                if settings:
                    self.train(f"{name}_threads", *settings)
                else:
                    self.copy_whole(f"{name}_threads")
                self.mpirun(ranks, f"{name}_mpi", *settings)
                self.assertEqual(self.numbers(f"{name}_threads"), self.numbers(f"{name}_mpi"))

    def test_torchrun_variables_give_the_bits_of_threads(self):
        self.copy_whole("threads")
        ranks = self.start_torchrun(self.arguments("tcp"), self.arguments("tcp"))
        outputs = [rank.communicate(timeout=120) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], outputs)
        self.assertEqual(outputs[1][0], "", "only rank 0 prints")
        self.assertEqual(self.numbers("threads"), self.numbers("tcp"))

    @with_mpi
    def test_one_pod_of_a_training_operator_runs_all_ranks_as_threads(self):
        pod = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        self.pptrain(*self.arguments("pod"), **pod)
        self.copy_whole("threads")
        self.assertEqual(self.numbers("pod"), self.numbers("threads"))

    def test_wrong_number_of_processes(self):
        error = self.mpirun(3, "run", code=2).stderr
        self.assertIn("pp 2", error)
        self.assertEqual(error.count("pp 2"), 1, "one rank says it")

    @with_mpi
    def test_a_fault_of_one_rank_alone(self):
        missing = self.folder / "missing.toml"
        error = self.run_command(*mpi_command(MPIEXEC, 1), PPTRAIN, *self.arguments("run"), ":", "-n", "1", PPTRAIN, "--config",
                                 missing, code=2).stderr
        self.assertIn(f"rank 1: {missing}", error)
        self.assertEqual(error.count(str(missing)), 1, "one rank says it")

    @with_mpi
    def test_a_rank_with_other_sizes(self):
        keys = ("train.seq_len", "train.micro_batch_size", "model.hidden_size")
        other = self.arguments("run", *(f"{key}={size}" for key, size in zip(keys, (12, 3, 64))))
        error = self.run_command(*mpi_command(MPIEXEC, 1), PPTRAIN, *self.arguments("run"), ":", "-n", "1", PPTRAIN, *other, code=2).stderr
        for key in keys:  # the message names each key that differs
            self.assertRegex(error, r"rank 1: \(host \S+\) the job is another one than rank 0's .*" + key)

    @with_mpi
    def test_heartbeats_heed_the_address_of_the_host(self):
        run = [*mpi_command(MPIEXEC, 2), PPTRAIN]
        done = self.run_command(*run, *self.arguments("wrong"), PPTRAIN_HOST_ADDRESS="192.0.2.7")  # RFC 5737: no host
        self.assertIn('PPTRAIN_HOST_ADDRESS is "192.0.2.7": this host has no such address', done.stdout + done.stderr)
        done = self.run_command(*run, *self.arguments("right"), PPTRAIN_HOST_ADDRESS="127.0.0.1")
        self.assertNotIn("PPTRAIN_HOST_ADDRESS", done.stdout + done.stderr)

    @with_mpi
    def test_a_fault_of_all_ranks(self):
        error = self.mpirun(2, "run", "train.seq_len=-1", "no.such_key=1", code=2).stderr
        for expected in ("train.seq_len", "no.such_key"):
            self.assertEqual(sum(line.count(expected) for line in self.own_lines(error)), 1, error)
        error = self.run_command(*mpi_command(MPIEXEC, 2), PPTRAIN, "--no-such-flag", code=2).stderr
        self.assertEqual(error.count("--no-such-flag"), 1, error)

    def test_faults_under_torchrun_variables(self):
        good = self.arguments("run", "train.steps=1")
        bad = self.arguments("run", "train.seq_len=-1")
        missing = ["--config", str(self.folder / "missing.toml")]
        cases = {
            "of all": ([bad, bad], "train.seq_len", None),
            "of one": ([good, missing], "rank 1: ", "missing.toml"),
            "of rank 0 alone": ([missing, good], "rank 0: ", "missing.toml"),
            "of two": ([good, bad, bad], "ranks 1, 2: ", "train.seq_len"),
            "of a launch": ([good, good, good], "pp 2", "3 were launched"),
            "of each its own": ([bad, missing], "rank 0: ", "rank 1: "),
            "another job": ([good, self.arguments("run", "train.steps=1", "train.seq_len=12")], "rank 1: ",
                            "train.seq_len is 12, on rank 0 "),
        }
        for name, (commands, expected, also) in cases.items():
            with self.subTest(name):
                before = time.monotonic()
                ranks = self.start_torchrun(*commands)
                outputs = [rank.communicate(timeout=60) for rank in ranks]
                self.assertLess(time.monotonic() - before, 20)
                self.assertEqual([rank.returncode for rank in ranks], [2] * len(ranks), outputs)
                self.assertEqual(outputs[0][1].count(expected), 1, outputs)
                self.assertIn(also or expected, outputs[0][1])
                self.assertEqual([error for _, error in outputs[1:]], [""] * (len(ranks) - 1), "only rank 0 speaks")

    def test_a_rank_alone(self):
        def alone_as(rank, *keys):
            return start([PPTRAIN, *self.arguments("run", "train.steps=1", *keys)], self.folder,
                         env=rank_environment(rank, 2, free_port()))

        for rank in (0, 1):
            with self.subTest("time", rank=rank):
                before = time.monotonic()
                alone = alone_as(rank, "distributed.start_timeout_s=1")
                error = alone.communicate(timeout=60)[1]
                self.assertLess(time.monotonic() - before, 10)
                self.assertEqual(alone.returncode, 1, error)
                self.assertIn(f"rank {rank} waited 1.0 s for rank {1 - rank}", error)
        signals = ("SIGTERM", "SIGINT")
        waiting = [(name, rank, alone_as(rank)) for name in signals for rank in (0, 1)]
        time.sleep(3)
        for name, rank, alone in waiting:
            with self.subTest(name, rank=rank):
                before = time.monotonic()
                alone.send_signal(getattr(signal, name))
                error = alone.communicate(timeout=60)[1]
                self.assertLess(time.monotonic() - before, 2)
                self.assertEqual(alone.returncode, 3, error)
                self.assertIn(f"rank {rank} was told to stop while it waited for rank {1 - rank}", error)

    def test_variables_of_a_launcher_that_make_no_sense(self):
        error = self.pptrain("--config", self.job, code=2, RANK=4, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=1).stderr
        self.assertIn("RANK = 4", error)

    def test_no_gpu(self):
        if shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi"], capture_output=True).returncode == 0:
            self.skipTest("this machine has a GPU")
        self.assertIn("no GPU was found", self.train("run", "run.device=cuda", code=2).stderr)

    # --- stopping and resuming ---------------------------------------------------------------------------------------

    def test_a_finished_run_says_so(self):
        self.copy_whole("run")
        self.assertRegex(self.whole_said.stdout, r"done: 4 steps, validation loss \d\.\d+ nats")
        self.assertIn("nothing to do", self.train("run").stdout)
        self.assertIn("sound", self.pptrain("verify", self.folder / "run/checkpoints").stdout)

    def test_verify_takes_the_steps_in_order(self):
        self.train("run", "train.steps=12", "checkpoint.interval=1", "checkpoint.keep_last_n=0", "eval.interval=0")
        checkpoints = self.folder / "run/checkpoints"
        (checkpoints / "step_007").mkdir()
        lines = self.pptrain("verify", checkpoints).stdout.splitlines()
        self.assertEqual(lines, [f"{checkpoints}/step_{step}: sound" for step in range(1, 13)])
        (checkpoints / "step_11/manifest.json").unlink()
        damaged = self.pptrain("verify", checkpoints, code=1).stdout.splitlines()
        self.assertEqual(damaged[:10] + damaged[11:], lines[:10] + lines[11:])
        self.assertIn("step_11: ", damaged[10])

    def test_verify_and_report_take_a_folder_of_runs(self):
        for name in ("runs/a", "runs/b"):
            self.copy_whole(name)
        (self.folder / "runs/young").mkdir()
        (self.folder / "runs/young/lock").touch()
        (self.folder / "runs/notes").mkdir()
        lines = self.pptrain("verify", "runs").stdout.splitlines()
        self.assertIn("runs/young: no checkpoint", lines)
        self.assertEqual(self.pptrain("verify", "runs/young").stdout, "runs/young: no checkpoint\n")
        for name in ("runs/a", "runs/b"):
            step = latest(self.folder / name).relative_to(self.folder)
            self.assertIn(f"{step}: sound", lines)
        damaged = next((self.folder / "runs/b/checkpoints").glob("step_*/stage_0/model.safetensors"))
        damaged.write_bytes(damaged.read_bytes()[:-1])
        self.assertRegex(self.pptrain("verify", "runs", code=1).stdout, "runs/b/checkpoints/step_.*truncated|runs/b/checkpoints/step_.*bytes")
        self.pptrain("report", "runs", "-o", "runs.html")
        page = (self.folder / "runs.html").read_text()
        names = [run["name"] for run in json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])["runs"]]
        self.assertEqual(names, ["runs/a", "runs/b"])

    def test_eval_of_a_checkpoint_on_any_layout(self):
        self.copy_whole("run")
        trained = [r for r in records(self.folder / "run") if "eval_loss" in r][-1]
        before = sorted(p for p in (self.folder / "run").rglob("*"))
        last = self.folder / "run/checkpoints/step_4"
        one, zbv = "distributed.pp=1", "distributed.pp_schedule=zbv"
        for checkpoint, layout in (([], one), ([], zbv), (["--checkpoint", last], zbv), (["--checkpoint", self.folder / "run"], one)):
            with self.subTest(checkpoint=checkpoint, layout=layout):
                done = self.pptrain("eval", *self.arguments("run", layout), *checkpoint, "--json")
                result = json.loads(done.stdout)
                self.assertEqual(result["loss"], trained["eval_loss"])
                self.assertAlmostEqual(result["bits_per_byte"], result["loss"] / math.log(2), 12)
                self.assertEqual(result["weights"], f"{last} (step 4)")
        text = self.pptrain("eval", *self.arguments("run"), "--batches", "1").stdout
        self.assertRegex(text, r"bits per byte  \d\.\d{4}\ntokens         128\n")
        self.assertEqual(sorted(p for p in (self.folder / "run").rglob("*")), before)

    @with_mpi
    def test_eval_and_generate_under_mpirun(self):
        self.copy_whole("run")
        for command in (["eval", "--json"], ["generate", "--prompt", "To be", "--max-tokens", "9", "--json"]):
            alone = self.pptrain(*command, *self.arguments("run")).stdout
            spread = self.run_command(*mpi_command(MPIEXEC, 2), PPTRAIN, *command, *self.arguments("run")).stdout
            same = [{k: v for k, v in json.loads(text).items() if k != "time_s"} for text in (alone, spread)]
            self.assertEqual(*same)
        refused = self.run_command(*mpi_command(MPIEXEC, 2), PPTRAIN, "eval", *self.arguments("empty"), code=2)
        self.assertEqual(refused.stderr.count("there is no checkpoint in"), 1)

    def test_generate(self):
        self.copy_whole("run")
        job = self.arguments("run", "model.max_position_embeddings=16", "data.path=\"not here\"")
        once = ["--prompt", "To be", "--max-tokens", "12", "--seed", "5"]
        result = json.loads(self.pptrain("generate", *job, *once, "--json").stdout)
        self.assertEqual(result["prompt_ids"], list(b"To be"))
        self.assertEqual(len(result["ids"]), 12)
        self.assertEqual(bytes(result["ids"]).decode(errors="replace"), result["text"])
        shown = self.raw("generate", *job, *once)  # any bytes
        self.assertEqual(shown.stdout, bytes(result["ids"]) + b"\n")
        self.assertIn(b"1 prompt, 12 tokens in", shown.stderr)
        prompts = self.folder / "prompts"
        prompts.write_text("one\ntwo\n")
        several = self.raw("generate", *job, "--prompts", prompts, "--prompt-ids", "7,8", "--max-tokens", "3", "--greedy",
                           "--stop-id", "300", "--stop", "never").stdout
        self.assertEqual(re.findall(rb"--- (\d): (.*)\n", several), [(b"1", b"one"), (b"2", b"two"), (b"3", b"7,8")])

    def test_values_in_brackets_are_taken_as_they_stand(self):
        self.copy_whole("run")
        job = [*self.arguments("run", "model.max_position_embeddings=64"), "--max-tokens", "40", "--greedy"]

        def generate(*arguments):
            return [json.loads(line) for line in self.pptrain("generate", *job, *arguments, "--json").stdout.splitlines()]

        texts = ["[INST] a, b [/INST]", "[]", "[a,b]"]
        given = [part for text in texts for part in ("--prompt", text)]
        *lines, ids = generate(*given, f"--prompt={texts[0]}", "--prompt-ids", "[1,2,3]")
        self.assertEqual([line["prompt"] for line in lines], [*texts, texts[0]])
        self.assertEqual(ids["prompt_ids"], [1, 2, 3])
        plain = generate("--prompt", "To be")[0]
        letter = next(c for c in plain["text"] if c.isascii() and c.isprintable())
        self.assertEqual(generate("--prompt", "To be", "--stop", letter)[0]["finish"], "stop")
        self.assertEqual(generate("--prompt", "To be", "--stop", f"[{letter}]")[0], plain)
        self.assertIn('--set [a,b]: expected section.key=value',
                      self.pptrain("check", "--config", self.job, "--set", "[a,b]", code=2).stderr)
        refused = self.pptrain("check", "--config", self.job, "--set", "train.steps=5", "train.seq_len=8", code=2).stderr
        self.assertIn("did you mean --set train.seq_len=8?", refused)

    def raw(self, *arguments):
        return subprocess.run([str(a) for a in (PPTRAIN, *arguments)], capture_output=True, env=environment(),
                              cwd=self.folder, timeout=120, check=True)

    def test_generate_reads_prompts_from_standard_input(self):
        self.copy_whole("run")
        def generate(*arguments, text):
            done = run([PPTRAIN, "generate", *self.arguments("run"), "--greedy", "--json", *arguments], self.folder, input=text)
            return [json.loads(line) for line in done.stdout.splitlines()]

        both = generate("--prompt", "To", "--prompt", "be", text="")
        self.assertEqual(generate(text="To\n\nbe\n"), both)
        self.assertEqual(generate("--prompts", "-", text="To\r\nbe"), both)
        self.assertEqual(generate("--prompt", "To", "--prompts", "-", text="be\n"), both)
        self.assertEqual([out["prompt"] for out in generate(text="a\0b\nc\n")], ["a\0b", "c"])
        # As long as the 16 positions allow; the last token is never read.
        self.assertEqual([len(out["ids"]) for out in both], [15, 15])

    def test_generate_refuses_by_name(self):
        self.copy_whole("run")
        for arguments, text in ((["--prompt", "a", "--max-tokens", "128"], "prompt 1: 1 tokens and 128 more are beyond the model's 16 positions"),
                                (["--prompt", "a" * 17], "prompt 1: it has 17 tokens, and the model takes 16"),
                                ([], "no prompt; give --prompt TEXT"),
                                (["--prompt-ids", "1,x"], 'expected numbers with commas between, like 1,2,3'),
                                (["--prompt-ids", "256"], "the id 256 is not in the model's vocabulary"),
                                (["--prompt", "a", "--max-tokens", "2", "--top-p", "0"], "--top-p 0: allowed is"),
                                (["--prompt", "a", "--max-tokens", "2", "--checkpoint", "nowhere"], 'no "nowhere"'),
                                (["--prompt", "a", "--max-tokens", "2", "--checkpoint", self.folder], "holds no checkpoint")):
            with self.subTest(arguments=arguments):
                done = self.pptrain("generate", *self.arguments("run"), *arguments, code=2)
                self.assertIn(text, done.stderr)
                self.assertEqual(done.stdout, "")
        other = self.pptrain("generate", *self.arguments("run", "model.rope_theta=500"), "--prompt", "a",
                             "--max-tokens", "2", code=2)
        self.assertIn("is of another model: model.rope_theta was ", other.stderr)
        unread = self.pptrain("generate", *self.arguments("run", "data.format=bin"), "--prompt", "a", code=2)
        self.assertIn('--prompt needs to know the text of tokens, which data.format = "bin" does not say', unread.stderr)

    def test_a_resume_path_without_checkpoint(self):
        (self.folder / "empty").mkdir()
        error = self.train("run", f'checkpoint.resume="{self.folder / "empty"}"', code=1).stderr
        self.assertIn("no complete checkpoint", error)

    def test_the_same_command_goes_on_whatever_checkpoint_resume_says(self):
        self.train("parent", "eval.interval=0", "checkpoint.resume=none")
        shutil.copytree(self.folder / "parent", self.folder / "again")
        steps = ["train.steps=200", "eval.interval=0"]
        whole = {}
        for name, resume in {"none": "none", "path": self.folder / "parent/checkpoints/step_4", "again": "restart"}.items():
            with self.subTest(name):
                settings = [*steps, f'checkpoint.resume="{resume}"']
                begins = "resume" if name == "path" else "new"
                if begins not in whole:
                    self.train("whole_" + name, *settings)
                    whole[begins] = self.numbers("whole_" + name)
                self.stop_at_step(8, name, *settings)
                out = self.train(name, *settings, own_start=True).stdout
                self.assertIn("resumed from " + str(self.folder / name / "checkpoints/step_"), out)
                self.assertEqual(whole[begins], self.numbers(name))
                first, second = self.starts(name)
                self.assertEqual(first["start"], begins)
                self.assertEqual(second["start"], "resume")
                self.assertIn("--config", first["command"])
                self.assertIn("--config", second["command"])
        # Starting a run over moves the old files aside and deletes nothing.
        self.assertTrue((self.folder / "again/checkpoints.1/step_4").is_dir())
        self.assertIn('"step":4', (self.folder / "again/metrics.1.jsonl").read_text())
        self.assertIn('resume = "none"', (self.folder / "again/job.1.toml").read_text())

    def test_a_job_that_does_not_fit_the_checkpoint_is_refused(self):
        self.copy_whole("run")
        cases = {"model.rope_theta=5e5": "model.rope_theta was 10000.0, is 500000.0",
                 "train.seq_len=8": "train.seq_len was 16, is 8"}
        for change, words in cases.items():
            with self.subTest(change):
                self.assertIn(words, self.train("run", "train.steps=8", change, code=2).stderr)
                if MPIEXEC:
                    error = self.mpirun(2, "run", "train.steps=8", change, code=2).stderr
                    self.assertEqual(error.count(words), 1, error)
        out = self.train("run", "train.steps=8", "optimizer.lr=1e-3").stdout
        self.assertRegex(out, r"step_4 goes on with changed settings: train\.steps was 4, is 8; optimizer\.lr was 0\.01, is 0\.001; learning rate of step 5: ")

    # --- failures ----------------------------------------------------------------------------------------------------

    def test_non_finite_steps_are_skipped_then_fatal(self):
        done = self.train("run", "optimizer.lr=1e30", "train.steps=50", "train.max_skipped_steps=3", "lr_schedule.warmup_steps=0",
                          "optimizer.weight_decay=0", "eval.interval=0", code=1)
        self.assertIn("SKIPPED", done.stdout)
        self.assertIn("max_skipped_steps", done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        self.assertEqual([r["skipped"] for r in records(self.folder / "run") if "skipped" in r][-3:], [True] * 3)

    def test_unwritable_run_dir(self):
        (self.folder / "file").write_text("in the way")
        error = self.train("file/run", code=1).stderr
        self.assertIn("run.dir: cannot create", error)

    def test_a_folder_whose_name_is_no_text(self):
        folder = pathlib.Path(os.fsdecode(os.fsencode(self.folder) + b"/caf\xe9"))
        folder.mkdir()
        shutil.copy(self.job, folder)
        for command in [PPTRAIN], [PPTRAIN, "check"]:
            said = self.run_command(*command, "--config", "job.toml", cwd=folder, code=2, own_start=True).stderr
            self.assertRegex(said, r"dir = .*caf\?.*: the path is no UTF-8 text, which checkpoints need")
        self.assertFalse((folder / "run").exists())

    def test_standard_output_that_is_closed_or_full(self):
        # The lock would become descriptor 1, and get the lines of the log.
        closed = 'exec "$0" --config job.toml --set run.dir=closed --set metrics.log_interval=1 >&-'
        self.run_command("bash", "-c", closed, PPTRAIN, own_start=True)
        self.assertNotIn("loss", (self.folder / "closed/lock").read_text(errors="replace"))
        for command in "config train.steps", "check --config job.toml":
            said = self.run_command("bash", "-c", f'"$0" {command} > /dev/full', PPTRAIN, code=1, own_start=True).stderr
            self.assertIn("standard output: No space left on device", said)

    def test_resolved_job_runs_again(self):
        self.copy_whole("first")
        resolved = self.folder / "first/resolved.toml"
        self.pptrain("--config", resolved, "--set", f'run.dir="{self.folder / "second"}"')
        self.assertEqual(self.numbers("first"), self.numbers("second"))


class Clock(Case):
    """Tests that depend on the machine's speed: signals, kills, time limits."""

    own_start = True

    def test_quick_answers(self):
        whole = PPTRAIN.with_name("pptrain_whole")
        for arguments in (["--version"], ["config"], ["config", "--reference"], ["config", "--schema"],
                          ["completion", "bash"], ["completion", "zsh"], ["completion", "fish"]):
            with self.subTest(arguments):
                if arguments == ["--version"] and has_gpu_driver():  # pptrain_cuda answers
                    continue
                self.assertEqual(self.pptrain(*arguments).stdout, self.run_command(whole, *arguments).stdout)
                # Copied to a folder without pptrain_whole, the program answers by itself, and fast.
                alone = self.folder / "pptrain"
                shutil.copy(PPTRAIN, alone)
                self.assertLess(min(seconds(lambda: self.run_command(alone, *arguments)) for _ in range(5)), 0.2)

    def test_a_fault_waits_for_no_clock(self):
        missing = self.folder / "missing.toml"

        def torchrun():
            ranks = self.start_torchrun(self.arguments("run"), ["--config", str(missing)])
            self.assertIn(f"rank 1: {missing}", [rank.communicate(timeout=60) for rank in ranks][0][1])

        def mpirun():
            self.run_command(*mpi_command(MPIEXEC, 1), PPTRAIN, *self.arguments("run"), ":", "-n", "1", PPTRAIN, "--config", missing, code=2)

        start_up = min(seconds(lambda: self.pptrain("--help")) for _ in range(3))
        for launch in [torchrun, mpirun] if MPIEXEC else [torchrun]:
            with self.subTest(launch.__name__):
                self.assertTrue(any(seconds(launch) < start_up + 2.5 for _ in range(3)), "slow three times")

    def test_signals_save_and_exit_3(self):
        steps = "train.steps=250"
        self.train("whole", steps)
        for name in ("SIGTERM", "SIGINT", "SIGUSR1"):
            with self.subTest(name):
                process = self.start_and_wait_for([PPTRAIN, *self.arguments(name, steps)], name, 5)
                process.send_signal(getattr(signal, name))
                out, err = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 3, out + err)
                self.assertIn("stopped by a signal", out)
        self.train("SIGTERM", steps, "distributed.pp=4", "distributed.pp_schedule=GPipe")
        self.assertEqual(self.numbers("whole"), self.numbers("SIGTERM"))

    @with_mpi
    def test_signal_under_mpirun(self):
        command = [*mpi_command(MPIEXEC, 2), PPTRAIN, *self.arguments("run", "train.steps=2000")]
        process = self.start_and_wait_for(command, "run", 5)
        process.send_signal(signal.SIGUSR1)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 3, out + err)
        self.assertIn("step 1/2000", out, "lines, not a progress bar, where mpirun writes into a pipe")
        self.assertTrue((self.folder / "run/checkpoints/latest").exists())

    @with_mpi
    def test_killed_and_resumed_on_another_layout(self):
        settings = ["train.steps=200", "checkpoint.interval=20"]
        self.train("whole", *settings)
        process = self.start_and_wait_for([PPTRAIN, *self.arguments("killed", *settings)], "killed", 45)
        process.kill()
        process.communicate(timeout=60)
        out = self.mpirun(3, "killed", *settings, "distributed.pp=3").stdout
        self.assertIn("resumed from", out)
        self.assertEqual(self.numbers("whole"), self.numbers("killed"))

    @with_mpi
    def test_a_dead_rank_ends_the_others(self):
        command = [*mpi_command(MPIEXEC, 2), PPTRAIN, *self.arguments("run", "train.steps=100000")]
        process = self.start_and_wait_for(command, "run", 5)
        os.kill(self.ranks()[1], signal.SIGKILL)
        start = time.monotonic()
        process.communicate(timeout=30)
        self.assertNotEqual(process.returncode, 0)
        self.assertLess(time.monotonic() - start, 15)

    def test_one_run_at_a_time_in_a_folder(self):
        settings = ["train.steps=100000", "eval.interval=0"]
        process = self.start_and_wait_for([PPTRAIN, *self.arguments("run", *settings)], "run", 3)
        try:
            def files():  # the first run writes its pace from time to time
                return {path.name for path in self.folder.glob("run/*")} - {"pace.json"}
            before = files()
            error = self.train("run", *settings, "checkpoint.resume=restart", code=1).stderr
            self.assertIn(f"in use by process {process.pid} on {socket.gethostname()}", error)
            self.assertEqual(files(), before)
            self.assertIsNone(process.poll(), "the first goes on")
        finally:
            process.kill()
            process.communicate(timeout=60)
        # The lock went with the process, however it ended.
        self.train("run", "train.steps=4", "eval.interval=0")
        self.assertEqual((self.folder / "run/lock").read_text(), "")

    @with_mpi
    def test_one_run_at_a_time_under_mpirun(self):
        settings = ["train.steps=100000", "eval.interval=0"]
        process = self.start_and_wait_for([*mpi_command(MPIEXEC, 2), PPTRAIN, *self.arguments("run", *settings)], "run", 3)
        try:
            failed = self.run_command(*mpi_command(MPIEXEC, 2), PPTRAIN, *self.arguments("run", *settings), code=None, timeout=60)
            self.assertNotEqual(failed.returncode, 0)
            self.assertIn("in use by process", failed.stderr + failed.stdout)
            self.assertIsNone(process.poll(), "the first goes on")
        finally:
            process.send_signal(signal.SIGUSR1)
            process.communicate(timeout=60)


if __name__ == "__main__":
    unittest.main(verbosity=2)
