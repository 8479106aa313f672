"""scripts/gpu.sh run, on the CPU: its steps with the program itself, and its reports of failures with failing programs.

Usage: gpu_run_test.py PPTRAIN [unittest arguments]
"""

import contextlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from pptrain import environment  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "scripts/gpu"))
sys.dont_write_bytecode = True
import correct  # noqa: E402
import machine  # noqa: E402
import report  # noqa: E402
import run  # noqa: E402
from step import Context, Parts, Step  # noqa: E402

CATCH2_FAILURE = """\
{line}
norms in float64
{line}
test/gpu/float64_cases.cpp:35
{dots}

test/gpu/float64_cases.cpp:30: FAILED:
  CHECK( relative_error(actual.cpu(), expected) < tolerance(actual.scalar_type()) )
with expansion:
  1.0 < 0.000002

{equal}
test cases: 3 | 2 passed | 1 failed
assertions: 9 | 8 passed | 1 failed
""".format(line="-" * 79, dots="." * 79, equal="=" * 79)
# A program whose runs succeed but differ: it trains the name of its folder.
DIFFERENT = """#!/usr/bin/env python3
import json, pathlib, sys
if sys.argv[1] in ("verify", "--version", "--help"):
    sys.exit()
folder = pathlib.Path([text for text in sys.argv if text.startswith("run.dir=")][0].split("=", 1)[1])
(folder / "checkpoints/step_2").mkdir(parents=True)
(folder / "checkpoints/latest").write_text("step_2")
(folder / "metrics.jsonl").write_text("".join(json.dumps({"step": i, "loss": 1.5, "grad_norm": 2}) + "\\n" for i in (1, 2)))
tensors = {f"layers.{i}.weight": {"xxh3_128": "00"} for i in range(40)}
tensors["layers.7.weight"]["xxh3_128"] = folder.name
manifest = {"files": [{"file": "model", "tensors": tensors}]}
(folder / "checkpoints/step_2/manifest.json").write_text(json.dumps(manifest))
"""


# Tests; one of them leaves the device unusable for the rest of its process.
SPOILT = """#!/usr/bin/env python3
import sys
words = sys.argv[1:]
if words == ["--list-test-names-only"]:
    print("norms\\nproducts, by rows\\nlosses")
    sys.exit(3)
print("All tests passed (1 assertion in 1 test case)" if words in (["norms"], ["losses"]) else "CUDA error: an illegal memory access")
sys.exit(words not in (["norms"], ["losses"]))
"""
# A benchmark with one good figure and one bad of each kind.
GPU_BENCH = """#!/usr/bin/env python3
import json, pathlib, sys
rows = {{
    "copy": [dict(name="copy", bytes_per_s=4e12)],
    "attention": [],
    "kernels": [dict(name="swiglu", share=0.91, bytes_per_s=3.6e12, seconds=1e-4), dict(name="adamw", share=0.5)],
    "products": [dict(kind="burst", name="qkv", kernel="linear", rows=4096, flops_per_s=7.1e14)],
    "stages": [dict(name="middle", sequence=sequence, recompute="none", backward="B", attention=mode, mfu=mfu, tokens_per_s=1e4)
               for sequence, mode, mfu in ((4096, "fastest", 0.66), (8192, "deterministic", 0.55))],
    "profile": [dict(name="middle", sequence=4096, kernel=kernel, calls=4, seconds=share / 25, share=share)
                for kernel, share in (("all", 0.99), ("nvjet", 0.9), ("others", 0.09))],
}}
names = sys.argv[sys.argv.index("--sections") + 1].split(",")
report = dict(device="NVIDIA H200", cuda="13.0", small=False, peak_flops=989e12,
              sections={{name: dict(state="done", rows=rows[name]) for name in names}})
pathlib.Path(sys.argv[sys.argv.index("--out") + 1]).write_text(json.dumps(report))
sys.exit({code} if "stages" in names else 0)
"""


class GpuRun(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pptrain_gpu_run_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.pack = self.folder / "pack"
        for name in ("bin", "lib"):
            (self.pack / name).mkdir(parents=True)
        (self.pack / "configs").symlink_to(SOURCE / "configs")
        (self.pack / "pack.json").write_text(json.dumps({"commit": "test", "architectures": ""}))

    def add_program(self, name, text):
        path = self.pack / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def run_steps(self, *arguments, device="cpu", suite="correct"):
        self.done = subprocess.run(
            [SOURCE / "scripts/gpu.sh", "run", suite, "--pack", self.pack, "--out", self.folder / "out", "--device", device,
             "--quick", "--patience", "20", *arguments], capture_output=True, text=True, timeout=850,
            env=environment(PPTRAIN_PYTHON=sys.executable))
        report = self.folder / "out/report.json"
        self.report = json.loads(report.read_text()) if report.exists() else None
        return self.done.returncode

    def outcome(self, step):
        return next(outcome for outcome in self.report["outcomes"] if outcome["step"] == step)

    def test_the_programs_runs_agree(self):
        (self.pack / "bin/pptrain").symlink_to(PPTRAIN)
        code = self.run_steps("--only", "resume", "--only", "processes", "--only", "sanitizer")
        self.assertEqual(code, 0, self.done.stdout + self.done.stderr)
        self.assertIn("from step 3 on, 4 runs of 6 steps", self.outcome("resume")["text"])
        self.assertIn("TCP as thread ranks", self.outcome("processes")["text"])
        self.assertEqual((self.outcome("sanitizer")["outcome"], self.outcome("sanitizer")["text"]), ("not run", "needs a GPU"))
        self.assertEqual(self.report["pack"]["commit"], "test")
        self.assertIn("| correct | resume | passed |", (self.folder / "out/report.md").read_text())
        self.assertTrue("step_6: sound" in (self.folder / "out/steps.log").read_text())

    def test_a_tensor_that_differs_fails_its_step_alone(self):
        self.add_program("pptrain", DIFFERENT)
        self.add_program("test_gpu_model", "#!/bin/sh\necho 'All tests passed (7 assertions in 2 test cases)'\n")
        self.assertEqual(self.run_steps("--only", "model", "--only", "repeat"), 1)
        self.assertEqual(self.outcome("model")["text"], "test_gpu_model: 7 checks in 2 cases")
        self.assertEqual(self.outcome("repeat")["outcome"], "failed")
        self.assertIn("of 40 tensors 1 differ: model/layers.7.weight", self.outcome("repeat")["text"])
        self.assertFalse(self.report["passed"])

    def test_failed_cases_are_named(self):
        self.add_program("test_gpu_model", f"#!/bin/sh\ncat <<'EOF'\n{CATCH2_FAILURE}EOF\nexit 1\n")
        self.assertEqual(self.run_steps("--only", "model"), 1)
        self.assertIn("1 cases failed: norms in float64", self.outcome("model")["text"])
        self.assertIn("1.0 < 0.000002", self.outcome("model")["text"])

    def test_cases_without_a_device_do_not_pass(self):
        self.add_program("test_gpu_model", f"#!/bin/sh\necho '{correct.NO_DEVICE}'\necho 'All tests passed (1 assertion in 1 test case)'\n")
        self.assertEqual(self.run_steps("--only", "model"), 1)
        self.assertIn("did not run its cases", self.outcome("model")["text"])

    def test_a_lost_device_has_each_case_run_by_itself(self):
        self.add_program("test_gpu_model", SPOILT)
        self.assertEqual(self.run_steps("--only", "model"), 1)
        self.assertIn("each case by itself: 1 fail: products, by rows; 2 pass; 0 had no time", self.outcome("model")["text"])

    def test_nothing_packed_is_no_success(self):
        self.assertEqual(self.run_steps("--only", "model"), 3)
        self.assertEqual(self.outcome("model")["outcome"], "not run")
        self.assertFalse(self.report["passed"])

    def test_what_has_no_time_is_named(self):
        self.add_program("test_gpu_model", "#!/bin/sh\necho 'All tests passed (7 assertions in 2 test cases)'\n")
        self.assertEqual(self.run_steps("--limit", "0.001"), 3)
        names = [step.name for step in correct.SUITE.steps]
        self.assertEqual(self.report["not_run_for_time"], names)
        text = (self.folder / "out/report.md").read_text()
        self.assertIn("## Not run: time", text)
        self.assertIn(" --only ".join(["", *names]), text)
        self.assertIn("| correct | kernels | not run: time |", text)
        self.assertIn("not run: time kernels", self.done.stdout)

    def test_compute_sanitizer_is_missed_by_name(self):
        found, machine.find_tool = machine.find_tool, lambda name: None
        self.addCleanup(setattr, machine, "find_tool", found)
        [(outcome, text)] = self.run_here([Step("sanitizer", "", 60, correct.sanitizer, "")], device="cuda")
        self.assertEqual(outcome, "not run")
        self.assertTrue(text.startswith("compute-sanitizer is not on this machine"))
        self.assertEqual(self.found.exit_code, 3)

    def run_here(self, steps, seconds=600, device="cpu"):
        """Outcome and text of each of these steps; together they have `seconds`."""
        arguments = run.argparse.Namespace(patience=1, out=self.folder)
        self.found = report.Report({}, {}, device, "", "gpu.sh run")
        with open(self.folder / "steps.log", "wb") as log:
            context = Context(self.pack, self.folder, self.folder, log, device, True, environment())
            with contextlib.redirect_stdout(io.StringIO()):  # its "not run" does not count for this test
                run.run_steps(arguments, self.found, context, [("correct", step) for step in steps], time.monotonic() + seconds)
        return [(outcome.outcome, outcome.text) for outcome in self.found.outcomes]

    def test_a_step_that_hangs_takes_its_own_time_alone(self):
        hang = Step("hang", "", 1, lambda context: context.run((["sleep", "6000"], {}), name="sleeper"), "wake it")
        good = Step("good", "", 599, lambda context: context.run((["echo", "fine"], {}))[0].strip(), "")
        self.assertEqual([outcome for outcome, _ in self.run_here([hang, good])], ["failed", "passed"])
        self.assertIn("sleeper: not done in time, stopped", self.found.outcomes[0].text)
        self.assertEqual(self.found.exit_code, 1)
        self.assertIn("What to do: wake it", self.found.as_text())
        # If the time of all steps is over first, the step has not failed.
        hang.limit = 1.5
        [(outcome, _), (later, _)] = self.run_here([hang, good], seconds=1)
        self.assertEqual((outcome, later), ("not run", "not run"))
        self.assertEqual(self.found.exit_code, 3)

    def test_limits(self):
        steps = [("suite", Step(name, "", limit, None, "")) for name, limit in (("a", 100), ("b", 50), ("c", 30))]
        now = time.monotonic()
        # The seconds that earlier steps did not use, 20 here, and no more.
        self.assertAlmostEqual(run.deadline_of(steps, 1, now + 200) - now, 120, delta=10)
        self.assertAlmostEqual(run.deadline_of(steps, 1, now + 150) - now, 100, delta=10)  # the first is certain, the last is not
        self.assertAlmostEqual(run.deadline_of(steps[1:], 2, now + 70) - now, 70, delta=10)  # at least half of its limit
        self.assertIsNone(run.deadline_of(steps, 1, now + 40))
        self.assertLessEqual(correct.SUITE.limit, 300)
        self.assertLessEqual(run.bench.SUITE.limit, run.EVERYTHING)
        self.assertEqual([step.name for _, step in run.plan([], None)][-1], "sanitizer")

    def test_parts_fail_by_themselves(self):
        parts = Parts()
        for name, error in (("a", KeyError("no loss")), ("b", None)):
            with parts.part(name):
                if error:
                    raise error
        with self.assertRaisesRegex(Exception, "failed: a; passed: b\na: KeyError: 'no loss'"):
            parts.check()

    def test_figures_stand_in_the_report_with_goals(self):
        for code, expected in ((0, "passed"), (1, "failed")):
            self.add_program("gpu_bench", GPU_BENCH.format(code=code))
            (self.pack / "scripts").mkdir(exist_ok=True)
            if not (self.pack / "scripts/bench").exists():
                (self.pack / "scripts/bench").symlink_to(SOURCE / "scripts/bench")
            self.assertEqual(self.run_steps("--only", "stages", "--only", "parts", suite="bench"), code)
            self.assertEqual([outcome["outcome"] for outcome in self.report["outcomes"]], [expected, "passed"])
            text = (self.folder / "out/report.md").read_text()
            self.assertIn("2 of 4 goals met", text.splitlines()[0])
            for row in ("middle stage, 4096 tokens, recompute none, B, fastest | 66.0% MFU | 65% | yes |",
                        "middle stage, 8192 tokens, recompute none, B, deterministic | 55.0% MFU | 60% | no |",
                        "| qkv | linear | 4,096 |",
                        "swiglu | 91.0% of the copy's rate | 85% | yes |", "adamw | 50.0% of the copy's rate | 85% | no |"):
                self.assertIn(row, text)
            self.assertIn("## Memory-bound kernels", text)
            self.assertIn("| middle | nvjet | 4 | 36,000.0 | 90.0% |", text)
            self.assertIn("- failed: whole: not measured", text)
            self.assertEqual(len(self.report["figures"]["goals"]), 4)
            self.assertLessEqual(len(list((self.folder / "out").iterdir())), 8)

    def test_figures_of_an_earlier_run_are_never_reported(self):
        (self.folder / "out").mkdir()
        (self.folder / "out/torch.json").write_text("{}")
        (self.pack / "scripts/bench").mkdir(parents=True)
        (self.pack / "scripts/bench/gpu_torch_stage.py").write_text("raise SystemExit('no compiler')\n")
        (self.pack / "scripts/bench/gpu_report.py").write_text("")
        self.assertEqual(self.run_steps(suite="bench"), 1)
        self.assertIn("no compiler", self.outcome("torch")["text"])
        self.assertFalse((self.folder / "out/torch.json").exists())
        self.assertEqual([outcome["outcome"] for outcome in self.report["outcomes"]], ["not run", "not run", "not run", "failed"])

    def test_a_damaged_pack(self):
        """Twice: the part of it that was unpacked is no pack."""
        for folder in ("scripts", "build-gpu"):
            (self.folder / folder).mkdir()
        shutil.copy(SOURCE / "scripts/gpu.sh", self.folder / "scripts")
        archive = self.folder / "build-gpu/pack.tar.gz"
        (self.pack / "later").write_bytes(os.urandom(200_000))
        subprocess.run(["tar", "-czf", archive, "-C", self.folder, "pack/pack.json", "pack/later"], check=True)
        whole = archive.read_bytes()
        for damaged in (whole[:-50_000], whole[:-50_000], b"", b"no archive"):
            archive.write_bytes(damaged)
            done = subprocess.run([self.folder / "scripts/gpu.sh", "run"], capture_output=True, text=True,
                                  env=environment(PPTRAIN_PYTHON=sys.executable))
            self.assertEqual(done.returncode, 4, done.stdout + done.stderr)
            self.assertIn(f"pptrain: error: {archive.resolve()} is damaged: carry it here again", done.stderr)

    def test_refusals(self):
        self.assertEqual(self.run_steps("--only", "nothing"), 2)
        try:
            machine.find_gpu()
        except machine.Unsuitable:
            self.assertEqual(self.run_steps(device="cuda"), 4)
            self.assertIn("no GPU", self.done.stderr)
            self.assertIn("# Nothing ran: no GPU", (self.folder / "out/report.md").read_text())
            self.assertEqual(self.report["exit_code"], 4)
        (self.pack / "pack.json").unlink()
        self.assertEqual(self.run_steps(), 4)
        self.assertIn("no pack in", self.done.stderr)
        self.assertIn("no pack in", self.report["refused"])
        (self.pack / "pack.json").write_text(json.dumps({"commit": "test", "architectures": ""}))
        self.add_program("pptrain", "#!/bin/sh\necho 'libm.so.6: version GLIBC_9 not found' >&2\nexit 1\n")
        self.assertEqual(self.run_steps(), 4)
        self.assertIn("does not start here: libm.so.6: version GLIBC_9 not found", self.done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
