"""scripts/gpu.sh run, on the CPU: its steps with the program itself, and its reports of what fails with programs that do.

Usage: gpu_run_test.py PPTRAIN [unittest arguments]
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from launch import environment  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "scripts/gpu"))
sys.dont_write_bytecode = True
import correct  # noqa: E402
import machine  # noqa: E402

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
# A program whose runs end well and differ: what it trains is the name of its folder.
DIFFERENT = """#!/usr/bin/env python3
import json, pathlib, sys
if sys.argv[1] == "verify":
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
        self.assertEqual(self.outcome("sanitizer")["outcome"], "skipped")
        self.assertEqual(self.report["pack"]["commit"], "test")
        self.assertIn("| correct | resume | passed |", (self.folder / "out/report.md").read_text())
        self.assertTrue("step_6: sound" in (self.folder / "out/steps.log").read_text())

    def test_a_tensor_that_differs_fails_its_step_alone(self):
        self.add_program("pptrain", DIFFERENT)
        self.add_program("test_gpu_model", "#!/bin/sh\necho 'All tests passed (7 assertions in 2 test cases)'\n")
        self.assertEqual(self.run_steps("--only", "model", "--only", "repeat"), 1)
        self.assertEqual(self.outcome("model")["text"], "7 checks in 2 cases")
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

    def test_what_is_not_packed_is_skipped(self):
        self.assertEqual(self.run_steps("--only", "model"), 0)
        self.assertEqual(self.outcome("model")["outcome"], "skipped")

    def test_figures_of_an_earlier_run_are_never_reported(self):
        (self.folder / "out").mkdir()
        (self.folder / "out/torch.json").write_text("{}")
        (self.pack / "scripts/bench").mkdir(parents=True)
        (self.pack / "scripts/bench/gpu_torch_stage.py").write_text("raise SystemExit('no compiler')\n")
        self.assertEqual(self.run_steps(suite="bench"), 1)
        self.assertIn("no compiler", self.outcome("torch")["text"])
        self.assertFalse((self.folder / "out/torch.json").exists())
        self.assertEqual([outcome["outcome"] for outcome in self.report["outcomes"]], ["skipped", "failed", "skipped", "skipped"])

    def test_refusals(self):
        self.assertEqual(self.run_steps("--only", "nothing"), 2)
        try:
            machine.find_gpu()
        except machine.Unsuitable:
            self.assertEqual(self.run_steps(device="cuda"), 4)
            self.assertIn("no GPU", self.done.stderr)
        (self.pack / "pack.json").unlink()
        self.assertEqual(self.run_steps(), 4)
        self.assertIn("no pack in", self.done.stderr)
        self.assertIsNone(self.report)


if __name__ == "__main__":
    unittest.main(verbosity=2)
