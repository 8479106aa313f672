"""pptrain fork: a run that begins at another run's checkpoint.

Usage: fork_test.py PPTRAIN [unittest arguments]
"""

import json
import pathlib
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import pptrain  # noqa: E402
from pptrain import job, records, run, sets, temporary_folder  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
JOB = job(train={"steps": 6}, checkpoint={"interval": 2, "keep_last_n": 0})


class Fork(pptrain.Case):
    @classmethod
    def setUpClass(cls):
        cls.whole = temporary_folder(cls.addClassCleanup)
        (cls.whole / "job.toml").write_text(JOB)
        run([PPTRAIN, "--config", "job.toml", *sets("run.dir=first")], cls.whole)

    def setUp(self):
        super().setUp()
        shutil.copytree(self.whole, self.folder, dirs_exist_ok=True)

    def pptrain(self, *arguments, code=0):
        return run([PPTRAIN, *arguments], self.folder, code=code)

    def status(self, name, code):
        return json.loads(self.pptrain("status", name, "--json", code=code).stdout)

    def test_a_fork_goes_on_with_the_bits_of_its_origin(self):
        before = sorted(self.folder.rglob("*"))
        said = self.pptrain("fork", "first", "--step", "4", "--to", "second").stdout
        self.assertEqual(said, "second begins at step 4 of first; to go on: pptrain --config second/job.toml\n")
        self.assertEqual(sorted(path for path in self.folder.rglob("*") if "second" not in path.parts), before)
        self.assertIn("pptrain --config 'a fork/job.toml'\n", self.pptrain("fork", "first", "--to", "a fork").stdout)
        file = "checkpoints/step_4/stage_0/model.safetensors"
        self.assertTrue((self.folder / "first" / file).samefile(self.folder / "second" / file))
        self.pptrain("verify", "second/checkpoints")
        new = self.status("second", 3)
        self.assertEqual((new["state"], new["checkpoint"], new["forked_from"]),
                         ("stopped", "step_4", {"run": str(self.folder / "first"), "step": 4}))
        self.assertIn(f"forked from step 4 of {self.folder / 'first'}\n", self.pptrain("status", "second", code=3).stdout)
        self.pptrain("report", "first", "second")
        self.pptrain("--config", "second/job.toml", *sets("distributed.pp=1"))
        self.assertEqual([r["step"] for r in records(self.folder / "second") if "grad_norm" in r], [5, 6])
        self.pptrain("diff", "first", "second", "--state")
        self.assertIn("steps 5 to 6: equal", self.pptrain("bisect", "first", "second").stdout)
        self.assertEqual(self.status("second", 3)["forked_from"]["step"], 4)
        self.assertNotIn("forked_from", self.status("first", 3))

    def test_samples_that_the_origin_skips_are_skipped(self):
        """Step 4 is from before a divergence; the origin goes on from it at sample 200."""
        rollbacks = [{"diverged": 3, "above_since": 2, "skip_to": 100}, {"diverged": 6, "above_since": 5, "skip_to": 200}]
        (self.folder / "first/rollbacks.json").write_text(json.dumps(rollbacks))
        self.pptrain("fork", "first", "--step", "4", "--to", "second")
        self.assertEqual(json.loads((self.folder / "second/rollbacks.json").read_text()), [{**rollbacks[1], "inherited": True}])
        self.pptrain("--config", "second/job.toml")
        self.pptrain("--config", "job.toml", *sets("run.dir=third", "checkpoint.resume=first/checkpoints/step_4"))
        (self.folder / "first/rollbacks.json").unlink()
        self.pptrain("--config", "job.toml", *sets("run.dir=fourth", "checkpoint.resume=first/checkpoints/step_4"))
        of = {name: [(r["epoch"], r["loss"]) for r in records(self.folder / name) if "grad_norm" in r]
              for name in ("first", "second", "third", "fourth")}
        self.assertEqual(of["second"], of["third"])
        self.assertEqual(of["fourth"], of["first"][4:])
        ratio = of["second"][0][0] / of["fourth"][0][0]  # the epoch is the share of samples taken
        self.assertAlmostEqual(ratio, (200 + 8) / (5 * 8))

    def test_forks_that_part_are_told_apart(self):
        for name, rate in ("same", "3e-4"), ("other", "1e-2"):
            self.pptrain("fork", "first", "--step", "2", "--to", f"{name}/")
            self.pptrain("--config", f"{name}/job.toml", *sets(f"optimizer.lr={rate}", "checkpoint.interval=1"))
        found = json.loads(self.pptrain("bisect", "same", "other", "--json", code=1).stdout)
        self.assertEqual((found["metrics"]["differs"], list(found["metrics"]["figures"])), (3, ["lr"]))
        self.assertEqual((found["checkpoints"]["equal"], found["checkpoints"]["differs"]), (2, 3))
        self.assertEqual(found["checkpoints"]["tensors"][0]["name"], "embed.weight")
        self.assertIn("learning rates", found["origin"])

    def test_the_newest_checkpoint_is_the_default(self):
        self.pptrain("fork", "first", "--to", "deep/er")
        self.assertEqual(self.status("deep/er", 3)["forked_from"]["step"], 6)
        self.pptrain("fork", "deep/er", "--to", "child")
        self.assertEqual(self.status("child", 3)["forked_from"]["run"], str(self.folder / "deep/er"))

    def test_a_restart_is_no_fork_any_more(self):
        self.pptrain("fork", "first", "--step", "2", "--to", "second")
        self.pptrain("--config", "second/job.toml", *sets("checkpoint.resume=restart", "train.steps=2"))
        self.assertTrue((self.folder / "second/fork.1.json").exists())
        self.assertNotIn("forked_from", self.status("second", 3))

    def test_what_is_refused(self):
        self.assertIn("no checkpoint of step 3, but of 2, 4, 6",
                      self.pptrain("fork", "first", "--step", "3", "--to", "x", code=2).stderr)
        self.assertIn("holds no checkpoint", self.pptrain("fork", "absent", "--to", "x", code=2).stderr)
        self.assertIn("holds something", self.pptrain("fork", "first", "--to", "first", code=2).stderr)
        (self.folder / "first/checkpoints/step_6/stage_1/model.safetensors").unlink()
        self.pptrain("fork", "first", "--step", "6", "--to", "x", code=1)
        self.assertEqual({path.name for path in self.folder.iterdir()}, {"first", "job.toml"})


if __name__ == "__main__":
    unittest.main()
