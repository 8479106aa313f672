"""pptrain diff and bisect: two runs that should have equal bits.

Usage: compare_test.py PPTRAIN [unittest arguments]
"""

import json
import pathlib
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import pptrain  # noqa: E402
from pptrain import job, latest, records, run, sets, temporary_folder  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
JOB = job(train={"steps": 6}, checkpoint={"interval": 2, "keep_last_n": 0})


def train(folder, name, *settings):
    run([PPTRAIN, "--config", "job.toml", *sets(f"run.dir={name}", *settings)], folder)


class Compare(pptrain.Case):
    @classmethod
    def setUpClass(cls):
        cls.whole = temporary_folder(cls.addClassCleanup)
        (cls.whole / "job.toml").write_text(JOB)
        train(cls.whole, "one", "distributed.pp=1")
        train(cls.whole, "two")
        train(cls.whole, "other", "run.seed=7")

    def setUp(self):
        super().setUp()
        shutil.copytree(self.whole, self.folder, dirs_exist_ok=True)

    def pptrain(self, *arguments, code=0):
        return run([PPTRAIN, *arguments], self.folder, code=code)

    def found(self, *arguments, code=0):
        return json.loads(self.pptrain(*arguments, "--json", code=code).stdout)

    def rewrite(self, name, change):
        """Changes the records of a run's steps."""
        lines = [change(dict(record)) for record in records(self.folder / name)]
        (self.folder / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def test_diff_of_equal_runs_on_two_layouts(self):
        text = self.pptrain("diff", "one", "two", "--state").stdout
        self.assertIn("one/checkpoints/step_6\n", text)
        self.assertRegex(text, r"(\d+) tensors: \1 equal, 0 different")
        found = self.found("diff", "one/checkpoints/step_4", "two/checkpoints/step_4")
        self.assertTrue(found["equal"])
        names = [tensor["name"] for tensor in found["tensors"]]
        self.assertEqual((names[0], names[-2:]), ("embed.weight", ["norm.weight", "head.weight"]))
        self.assertTrue(all(tensor["norm_a"] == tensor["norm_b"] > 0 for tensor in found["tensors"]))

    def test_diff_tells_what_differs(self):
        text = self.pptrain("diff", "two/checkpoints/step_2", "other/checkpoints/step_2", code=1).stdout
        self.assertRegex(text, r"model: layers\.3\.\S+ \[\d+, \d+\]: \d+ of \d+ elements differ\n"
                               r"  the first is \[0, 0\]: A \S+ \(stage_1/model\.safetensors, rank 1\), B ")
        found = self.found("diff", "one/checkpoints/step_2", "two/checkpoints/step_4", code=1)
        self.assertFalse(found["equal"])
        last = found["tensors"][-1]
        self.assertEqual([last[run]["rank"] for run in "ab"], [0, 1])
        self.assertGreater(last["differing"], 0)

    def test_diff_of_two_steps_says_so_first_and_is_short(self):
        first, last = "two/checkpoints/step_2", "two/checkpoints/step_6"
        lines = self.pptrain("diff", first, "two", code=1).stdout.splitlines()
        self.assertEqual(len(lines), 4)
        self.assertEqual(lines[:2], [f"A {first}", f"B {last}"])
        self.assertTrue(lines[2].startswith("different steps: A is of step 2, B of step 6, so their weights differ"), lines)
        self.assertRegex(lines[3], r"(\d+) tensors \(weights\): 0 equal, \1 different")
        found = self.found("diff", first, last, code=1)
        self.assertEqual([found["step_a"], found["step_b"]], [2, 6])
        self.assertTrue(all(tensor["differing"] > 0 for tensor in found["tensors"]))

    def test_words_of_other_commands_are_not_printed(self):
        (self.folder / "two/metrics.jsonl").unlink()
        self.assertEqual(self.pptrain("bisect", "one", "two", code=2).stderr,
                         "two/metrics.jsonl cannot be read; expected a run's folder, or a file like its metrics.jsonl\n")
        for step in (self.folder / "one/checkpoints").glob("step_*"):
            (step / "manifest.json").unlink()
        for command in (["diff", "one", "two"], ["fork", "one", "--to", "new"]):
            error = self.pptrain(*command, code=None).stderr
            self.assertIn("none of the checkpoints in 'one/checkpoints' can be used", error)
            self.assertNotRegex(error, "begun|start again|resume|restart")

    def test_diff_that_cannot_be_told_is_a_2(self):
        self.assertIn("there is no", self.pptrain("diff", "one", "absent", code=2).stderr)
        file = next(latest(self.folder / "one").rglob("model*.safetensors"))
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        self.assertIn("model.safetensors", self.pptrain("diff", "one", "two", code=2).stderr)

    def test_bisect_of_equal_runs(self):
        text = self.pptrain("bisect", "one", "two").stdout
        self.assertEqual(text, "metrics      steps 1 to 6: equal\n"
                               "checkpoints  of both runs: 2, 4, 6\n             step 6 is equal\n")

    def test_bisect_finds_the_step_of_changed_metrics(self):
        def change(record):
            if "grad_norm" in record and record["step"] >= 5:
                record["grad_norm"] *= 1 + 2 ** -52
            return record
        self.rewrite("two", change)
        found = self.found("bisect", "one", "two", code=1)
        self.assertEqual((found["metrics"]["differs"], list(found["metrics"]["figures"])), (5, ["grad_norm"]))
        self.assertEqual(found["checkpoints"], {"common": [2, 4, 6], "equal": 6})
        self.assertIn("did not reach them", found["origin"])
        for name in ("step_4", "step_6"):
            shutil.rmtree(self.folder / "two/checkpoints" / name)
        self.assertIn("backward pass", self.found("bisect", "one", "two", code=1)["origin"])

    def test_bisect_finds_the_first_checkpoint_that_differs(self):
        text = self.pptrain("bisect", "two", "other", code=1).stdout
        self.assertIn("metrics      steps 1 to 6: step 1 is the first that differs\n             loss: A ", text)
        self.assertIn("step 2 is the first that differs, in ", text)
        self.assertRegex(text, r"first of them:\nmodel: embed\.weight .*\n.*stage_0/model\.safetensors, rank 0\)")
        self.assertIn("run both anew with --set checkpoint.interval=1", text)
        # As if step 5 made the weights differ: the metrics and checkpoints before it are those of the equal run.
        for step in (2, 4):
            shutil.rmtree(self.folder / f"other/checkpoints/step_{step}")
            shutil.copytree(self.folder / f"one/checkpoints/step_{step}", self.folder / f"other/checkpoints/step_{step}")
        lines = {record["step"]: record for record in records(self.folder / "one") if "grad_norm" in record}
        self.rewrite("other", lambda record: lines[record["step"]] if record.get("step", 9) < 5 and "grad_norm" in record
                     else record)
        found = self.found("bisect", "two", "other", code=1)
        self.assertEqual(found["metrics"]["differs"], 5)
        self.assertEqual((found["checkpoints"]["equal"], found["checkpoints"]["differs"]), (4, 6))
        self.assertIn("began with equal weights", found["origin"])
        text = self.pptrain("bisect", "two", "other/", code=1).stdout
        self.assertIn("  pptrain fork other --step 4 --to other.fork\n", text)
        shutil.copytree(self.folder / "other", self.folder / "an other")
        text = self.pptrain("bisect", "two/metrics.jsonl", "an other", code=1).stdout
        self.assertIn("  pptrain fork two --step 4 --to two.fork\n", text)
        self.assertIn("  pptrain fork 'an other' --step 4 --to 'an other.fork'\n  pptrain --config 'an other.fork/job.toml' ", text)

    def test_bisect_of_runs_without_a_common_checkpoint(self):
        shutil.rmtree(self.folder / "other/checkpoints")
        text = self.pptrain("bisect", "two", "other", code=1).stdout
        self.assertIn("checkpoints  no step has one in both runs\n", text)
        self.assertIn("run both anew with --set checkpoint.interval=1 --set checkpoint.keep_last_n=0", text)
        self.rewrite("other", lambda record: {**record, "step": record["step"] + 100})
        self.assertIn("no step in common", self.pptrain("bisect", "two", "other", code=2).stderr)


if __name__ == "__main__":
    unittest.main()
