"""Every command accepts a run's folder, on any layout and from any directory: job.toml is the job as it was given.

Usage: run_folder_test.py PPTRAIN MPIEXEC [unittest arguments]; MPIEXEC is "" in a build without MPI
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import pptrain  # noqa: E402
import published_models  # noqa: E402
from pptrain import SOURCE, TEXT, checksums, job, latest, mpi_command, run, sets, steps, temporary_folder  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
MPIEXEC = sys.argv.pop(1)
SMALL = {"model": {"num_hidden_layers": 8}, "train": {"steps": 2, "seq_len": 32}, "data": {"path": str(TEXT), "val_fraction": 0.1},
         "eval": {"batches": 1}}
ORDERS = {
    "zbv": {"pp_schedule": "zbv"},
    "cost": {"pp_schedule": "interleaved_1f1b", "pp_split": "cost"},
    "search": {"pp_schedule": "search", "pp_costs": "h100"},
    "sliced": {"pp_schedule": "search", "pp_sequence_slices": 2, "pp_head": "spread"},
    "spread": {"pp_schedule": "zbv", "pp_head": "spread"},
}


class Folder(pptrain.Case):
    def pptrain(self, *arguments, code=0, cwd=None):
        return run([PPTRAIN, *arguments], cwd or self.folder, code=code)

    def start(self, name, *settings, **sections):
        """Two steps of a small job in the folder `name`."""
        (self.folder / "given.toml").write_text(job(**{**SMALL, **sections}))
        self.pptrain("--config", "given.toml", *sets(f"run.dir={name}", *settings))
        return self.folder / name

    def toml(self, *parts):
        return tomllib.loads(self.folder.joinpath(*parts).read_text())

    def losses(self, name):
        return [record["loss"] for record in steps(self.folder / name)]


# What starts a program with 256 KiB in /dev/shm.
LITTLE_MEMORY = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=256k tmpfs /dev/shm && exec "$@"', "sh"]
HAS_LITTLE = subprocess.run([*LITTLE_MEMORY, "true"], capture_output=True).returncode == 0


class Copies(Folder):
    def setUp(self):
        """Not in /dev/shm, which the test covers."""
        folder = tempfile.TemporaryDirectory(dir="/var/tmp")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    @unittest.skipUnless(HAS_LITTLE, "may not mount")
    def test_a_start_without_room_for_copies_is_refused_before_it_changes_anything(self):
        self.start("run", model={"hidden_size": 64})
        before = self.state("run")
        for name, resume in (("run", "restart"), ("other", f'"{self.folder}/run"')):
            done = run([*LITTLE_MEMORY, PPTRAIN, "--config", "given.toml",
                        *sets(f"run.dir={name}", "train.steps=4", "checkpoint.memory_seconds=1", f"checkpoint.resume={resume}")],
                       self.folder, code=2)
            self.assertIn("copies of the state take", done.stderr)
        self.assertEqual(self.state("run"), before)
        # A run that has begun goes on without them.
        done = run([*LITTLE_MEMORY, PPTRAIN, "--config", "given.toml",
                    *sets("run.dir=run", "train.steps=4", "checkpoint.memory_seconds=1")], self.folder)
        self.assertIn("the run goes on without copies in memory", done.stdout + done.stderr)

    def state(self, name):
        files = [path for path in (self.folder / name).rglob("*") if path.is_file() and path.name not in ("lock", "log.txt")]
        return sorted((str(path), path.stat().st_mtime_ns) for path in files)


class Layouts(Folder):
    def test_the_job_as_it_was_given_lies_beside_what_was_chosen(self):
        self.start("run", "train.grad_clip=2", distributed={"pp": 2, "pp_schedule": "search"})
        given = {section: keys for section, keys in tomllib.loads(job(**SMALL)).items()}
        given["run"] = {"dir": str(self.folder / "run")}
        given["distributed"] = {"pp": 2, "pp_schedule": "search"}
        given["train"] = {**given["train"], "grad_clip": 2.0}
        given["metrics"] = {"peak_tflops": 1.0}
        self.assertEqual(self.toml("run/job.toml"), given)
        resolved = self.toml("run/resolved.toml")
        self.assertEqual(resolved["distributed"]["pp_schedule"], "schedule.csv")
        self.assertEqual((sum(resolved["distributed"]["pp_split"]), resolved["lr_schedule"]["warmup_steps"]), (8, 2))
        self.assertEqual(json.loads((latest(self.folder / "run") / "manifest.json").read_text())["given"],
                         (self.folder / "run/job.toml").read_text())

    def test_a_run_goes_on_with_what_it_chose_where_nothing_else_is_asked(self):
        for name, keys in ORDERS.items():
            with self.subTest(name):
                layout = {"distributed": {"pp": 2, **keys}}
                self.start(name, **layout)
                self.start(f"{name}_whole", "train.steps=4", "lr_schedule.warmup_steps=2", **layout)
                before = self.toml(name, "resolved.toml")["distributed"]
                self.pptrain("resume", name, *sets("train.steps=4"))
                self.assertEqual(self.toml(name, "resolved.toml")["distributed"], before)
                self.assertFalse((self.folder / name / "schedule.1.csv").exists())
                self.assertEqual(self.losses(name), self.losses(f"{name}_whole"))
                self.assertEqual(checksums(latest(self.folder / name)), checksums(latest(self.folder / f"{name}_whole")))

    def test_every_command_takes_another_layout(self):
        one_slice = "distributed.pp_sequence_slices=1"
        four = ["distributed.pp=4", "train.grad_accum_steps=2"]  # few passes, so that the search is quick
        layouts = {"zbv": [["distributed.pp_schedule=1f1b"], ["distributed.pp=4", "train.grad_accum_steps=8"], ["distributed.pp=1"]],
                   "search": [["distributed.pp_schedule=1f1b", "distributed.pp=3", "distributed.pp_split=[3,3,2]"], four,
                              ["distributed.dp_shard=2", "train.grad_accum_steps=2"]],
                   "sliced": [["distributed.pp_schedule=gpipe", one_slice], four, ["distributed.pp=1", one_slice]]}
        for name, others in layouts.items():
            self.start(name, distributed={"pp": 2, **ORDERS[name]})
            for number, layout in enumerate(others):
                with self.subTest(name, layout=layout):
                    copy = f"{name}_{number}"
                    shutil.copytree(self.folder / name, self.folder / copy)
                    self.pptrain("eval", copy, "--batches", "1", *sets(*layout))
                    self.pptrain("resume", copy, *sets("train.steps=3", *layout))
                    self.assertEqual(len(self.losses(copy)), 3)

    def test_eval_and_generate_need_no_schedule_or_split(self):
        self.start("run", distributed={"pp": 2, "pp_schedule": "zbv", "pp_split": [1, 2, 3, 2]})
        whole = json.loads(self.pptrain("eval", "run", "--batches", "1", "--json").stdout)
        text = self.pptrain("generate", "run", "--prompt", "a", "--max-tokens", "3").stdout
        for ranks in (1, 3, 8):
            found = json.loads(self.pptrain("eval", "run", "--batches", "1", "--json", *sets(f"distributed.pp={ranks}")).stdout)
            self.assertEqual(found["loss"], whole["loss"])
            self.assertEqual(self.pptrain("generate", "run", "--prompt", "a", "--max-tokens", "3", *sets(f"distributed.pp={ranks}")).stdout, text)
        self.assertIn("distributed.pp", self.pptrain("eval", "run", *sets("distributed.pp=9"), code=2).stderr)

    def test_the_folder_s_job_plans_and_forks_with_a_kept_order(self):
        self.start("run", "profile.trace=true", "profile.first_step=1", "profile.steps=1", distributed={"pp": 2, **ORDERS["sliced"]})
        for file in ("run/job.toml", "run/resolved.toml"):
            self.pptrain("plan", "--config", file)
            self.pptrain("check", "--config", file)
            self.pptrain("plan", "--config", file, "--compare", "run/trace.json")
        self.pptrain("report", "run", "-o", "page.html")
        self.assertIn("<svg", (self.folder / "page.html").read_text())
        self.pptrain("fork", "run", "--to", "second")
        self.pptrain("--config", "second/job.toml", *sets("train.steps=3"))
        self.pptrain("fork", "run", "--to", "third")
        self.pptrain("resume", "third", *sets("train.steps=3", "distributed.pp_schedule=1f1b", "distributed.pp_sequence_slices=1",
                                              "distributed.pp_head=last"))
        self.assertEqual((len(self.losses("second")), len(self.losses("third"))), (1, 1))

    def test_a_folder_of_an_older_version_serves_too(self):
        """In a folder of an older version job.toml is the resolved job, and there is no resolved.toml."""
        self.start("run", distributed={"pp": 2, **ORDERS["sliced"]})
        text = (self.folder / "run/resolved.toml").read_text().replace('"schedule.csv"', '"run/schedule.csv"')
        (self.folder / "run/job.toml").write_text(text)
        (self.folder / "run/resolved.toml").unlink()
        for command in (["eval", "run", "--batches", "1"], ["generate", "run", "--prompt", "a", "--max-tokens", "2"],
                        ["check", "--config", "run/job.toml"], ["plan", "--config", "run/job.toml"],
                        ["generate", "run", "--prompt", "a", "--max-tokens", "2", *sets("distributed.pp=4")],
                        ["resume", "run", *sets("train.steps=3")]):
            with self.subTest(command):
                self.pptrain(*command)

    def test_the_ranks_that_a_job_leaves_open(self):
        (self.folder / "given.toml").write_text(job(**SMALL, distributed={"pp": 1, "dp_shard": -1, "reshard_after_forward": True}))
        self.pptrain("--config", "given.toml", "--world", "2", *sets("run.dir=run"))
        self.pptrain("eval", "run", "--batches", "1")
        self.pptrain("resume", "run", *sets("train.steps=3"))
        self.assertEqual(self.toml("run/resolved.toml")["distributed"]["dp_shard"], 2)
        self.pptrain("resume", "run", "--world", "4", *sets("train.steps=4"))
        resolved, given = self.toml("run/resolved.toml")["distributed"], self.toml("run/job.toml")["distributed"]
        self.assertEqual((resolved["dp_shard"], resolved["reshard_after_forward"], given["dp_shard"]), (4, True, -1))


class Places(Folder):
    def test_a_folder_serves_from_any_directory_and_when_it_was_moved(self):
        tokenizer = SOURCE / "configs/data/tokenizer"
        shutil.copytree(tokenizer, self.folder / "here/tokenizer")
        self.start("weights", model={"vocab_size": 1024})
        self.pptrain("convert", "--from", "weights", "--to", "here/hf")
        (self.folder / "here/text.txt").write_text(TEXT.read_text()[:40000])
        (self.folder / "here/given.toml").write_text(job(
            model=None, distributed={"pp": 2, "pp_schedule": "search"}, train=SMALL["train"],
            data={"path": "text.txt", "tokenizer": "tokenizer", "val_fraction": 0.1}, eval={"batches": 1})
            + '[model]\nhf_dir = "hf"\ninit = "hf"\n')
        self.pptrain("--config", "here/given.toml", *sets("run.dir=runs/first", "lora.rank=2"))
        (self.folder / "elsewhere").mkdir()
        (self.folder / "runs/first").rename(self.folder / "elsewhere/moved")
        there = self.folder / "elsewhere"
        for command in (["eval", "moved"], ["generate", "moved", "--prompt", "a", "--max-tokens", "2"],
                        ["check", "--config", "moved/job.toml"], ["resume", "moved", *sets("train.steps=3")],
                        ["fork", "moved", "--to", "fork"], ["--config", "fork/job.toml", *sets("train.steps=4")],
                        ["convert", "--merge", "--from", "moved", "--to", "merged"]):
            with self.subTest(command):
                self.pptrain(*command, cwd=there)
        self.assertFalse((there / "moved/schedule.1.csv").exists())

    def test_shipped_jobs_start_anywhere(self):
        for name in ("shakespeare", "zero_bubble", "llama3_70b_tp4_pp4_fsdp2_small"):
            said = self.pptrain("check", "--config", SOURCE / f"configs/{name}.toml").stdout
            self.assertIn("It would start here.", said)
            self.assertIn("data    OK  1 file", said)
        self.assertNotIn("current directory", run([PPTRAIN, "check", "--config", "configs/shakespeare.toml"], SOURCE).stdout)

    def test_a_path_of_the_current_directory_is_said(self):
        shutil.copy(TEXT, self.folder / "text.txt")
        (self.folder / "jobs").mkdir()
        (self.folder / "jobs/given.toml").write_text(job(data={"path": "text.txt"}))
        said = self.pptrain("check", "--config", "jobs/given.toml").stdout
        self.assertIn('data.path = "text.txt" is in the current directory; beside jobs/given.toml there is none', said)
        self.assertIn("is in the current directory", self.pptrain("--config", "jobs/given.toml").stdout)

    @unittest.skipUnless(MPIEXEC, "built without MPI")
    def test_hosts_may_keep_the_tokenizer_in_different_places(self):
        for name in ("a", "b", "other"):
            shutil.copytree(SOURCE / "configs/data/tokenizer", self.folder / name)
        with (self.folder / "other/tokenizer.json").open("a") as file:
            file.write("\n")
        (self.folder / "given.toml").write_text(job(**{**SMALL, "model": {"vocab_size": 1024}}))

        def ranks(tokenizer, code):
            command = [PPTRAIN, "--config", "given.toml", *sets(f"run.dir={tokenizer}_run", "distributed.pp=2")]
            return run([*mpi_command(MPIEXEC, 1), *command, *sets("data.tokenizer=a"), ":", "-n", "1", *command,
                        *sets(f"data.tokenizer={tokenizer}")], self.folder, code=code)
        ranks("b", 0)
        self.assertIn("the tokenizer is ", ranks("other", 2).stderr)


class Check(Folder):
    def test_check_says_what_the_start_does_with_the_folder(self):
        self.start("run")
        command = ["--config", "given.toml", *sets("run.dir=run", "train.steps=3")]
        for settings, reason in [(["model.hidden_size=64"], "is of another model or optimizer: model.hidden_size was 32, is 64"),
                                 (["optimizer.name=lion"], "is of another model or optimizer: optimizer.name"),
                                 (["lora.rank=2"], "holds a whole model"),
                                 (["data.val_fraction=0.4"], "was trained on other data or in another order: data.val_fraction"),
                                 (["run.seed=3"], "was trained on other data or in another order: run.seed"),
                                 (["train.seq_len=16"], "train.seq_len was 32, is 16")]:
            with self.subTest(settings):
                said = self.pptrain("check", *command, *sets(*settings), code=4).stdout
                self.assertIn("run     no  run/checkpoints/step_2", said)
                self.assertIn(reason, said)
                self.assertIn("It would not start here.", said)
                self.assertIn(reason, self.pptrain(*command, *sets(*settings), code=2).stderr)
        for settings, what in [([], "goes on from run/checkpoints/step_2"), (["distributed.pp=4"], "goes on from run/checkpoints/step_2"),
                               (["checkpoint.data=continue", "data.val_fraction=0.4"], "goes on from run/checkpoints/step_2"),
                               (["checkpoint.resume=restart"], "a new run in run")]:
            with self.subTest(settings):
                said = self.pptrain("check", *command, *sets(*settings)).stdout
                self.assertIn(f"run     OK  {what}", said)
        (self.folder / "run/checkpoints/step_2/manifest.json").write_text("{")
        self.assertIn("run     no  none of the checkpoints in", self.pptrain("check", *command, code=4).stdout)
        self.pptrain(*command, code=1)


class Published(unittest.TestCase):
    """Every family with a published config.json, by hf_dir: all commands accept the folder that a start leaves."""

    def test_a_folder_of_every_family(self):
        folder = temporary_folder(self.addCleanup)
        for name in published_models.PUBLISHED:
            with self.subTest(name):
                hf = folder / name
                hf.mkdir()
                (hf / "config.json").write_text(json.dumps(published_models.config(name)))
                (folder / "given.toml").write_text(
                    f'[model]\nhf_dir = "{name}"\n[train]\nsteps = 2\nseq_len = 16\ngrad_accum_steps = 2\n[distributed]\npp = 2\n'
                    f'[data]\npath = "{TEXT}"\nval_fraction = 0.1\n[eval]\nbatches = 1\n[metrics]\npeak_tflops = 1\n')
                run([PPTRAIN, "--config", "given.toml", *sets("run.dir=run")], folder)
                older = (folder / "run/resolved.toml").read_text()
                (folder / "older.toml").write_text(older)
                for command in (["eval", "run"], ["generate", "run", "--prompt-ids", "1,2", "--max-tokens", "2", "--json"],
                                ["check", "--config", "older.toml"], ["fork", "run", "--to", "fork"],
                                ["check", "--config", "fork/job.toml"],
                                ["resume", "run", *sets("train.steps=3", "distributed.pp_schedule=gpipe")]):
                    with self.subTest(name, command=command):
                        run([PPTRAIN, *command], folder)
                shutil.rmtree(folder / "run")
                shutil.rmtree(folder / "fork")


if __name__ == "__main__":
    unittest.main()
