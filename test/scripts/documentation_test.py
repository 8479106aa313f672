"""The documentation: commands on its pages run, links lead somewhere, tables of keys name keys.

Usage: documentation_test.py PPTRAIN MPIEXEC Site|Commands [unittest arguments]

Site makes the pages of scripts/site.sh without their HTML: the program runs every command that they show. Commands runs
the commands of the READMEs and of docs/, which are indented by four blanks. NOT_HERE names those that no test can run.
"""

import gzip
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts/site"))
import make_pages  # noqa: E402
from pptrain import SOURCE, environment, free_port, is_open_mpi, job, run, run_line  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
MPIEXEC = sys.argv.pop(1)
LINK = re.compile(r"\]\(([^)#\s]+)?(?:#([^)\s]*))?\)")
PAGES = ["README.md", *(f"docs/{name}" for name in ("launching.md", "stopping_and_resuming.md", "data.md", "lora.md", "evaluation.md")),
         "configs/schedules/README.md", "scripts/README.md"]
# The place that runs the command instead, or why none does.
NOT_HERE = {
    "scripts/text_to_text.sh": "test/scripts/text_to_text_test.py",
    "scripts/gpu.sh": "test/scripts/gpu_run_test.py",
    "cmake --install": "test/scripts/install_test.py",
    "build/test_core_nn": "test/core/nn/CMakeLists.txt",
    "scripts/test.sh": ".ci/run",
    "scripts/tolerances.sh": "test/scripts/tolerances_test.py",
    "scripts/format.sh": ".ci/run",
    "scripts/build.sh": "builds, which is what the tests stand on",
    "scripts/train.sh": "builds; its job is trained by command_line_test.py",
    "build/pptrain doctor": "test/app/commands/command_line_test.py",
    "build/pptrain fork": "test/app/commands/fork_test.py",
    "build/pptrain plan --config configs/llama3_8b_8gpu.toml --device h100 --search": "scripts/site/make_pages.py",
    "build/pptrain eval    runs/lora": "test/app/train/lora_test.py",
    "build/pptrain convert --from runs/lora": "test/app/train/lora_test.py",
    "pip install": "test/scripts/install_test.py",
    "tar xzf": "unpacks 500 MB that scripts/tarball.sh makes, of a build of its own",
}
QUICK = " --set train.steps=3 --set eval.interval=0 --set eval.batches=1 --set metrics.peak_tflops=1"


# Commands of launchers run with two processes in their own folder; a stand-in runs Slurm's.
LAUNCHED = " --set run.dir=runs/launched --set checkpoint.resume=restart"
SLURM = {
    "sbatch": """while [[ $1 == --* ]]; do shift 2; done
export SLURM_JOB_ID=$((RANDOM + $$)) SLURM_JOB_NODELIST=localhost SLURM_CPUS_PER_TASK=1
exec bash "$@" """,
    "scontrol": '[[ "$*" == "show hostnames localhost" ]] && echo localhost',
    "srun": """while [[ $1 == --* ]]; do shift; done
export SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=2
for rank in 0 1; do SLURM_PROCID=$rank SLURM_LOCALID=$rank "$@" & ranks+=($!); done
for rank in "${ranks[@]}"; do wait -n || { status=$?; kill "${ranks[@]}"; exit $status; }; done""",
}


def commands_of(page):
    """Indented lines that begin with a command, without the remark after it."""
    for line in (SOURCE / page).read_text().splitlines():
        words = re.match(r" {4}((?:build/|scripts/\w+\.sh|mkdir |mpirun |torchrun |sbatch |cmake |pip |tar ).*)$", line)
        if words:
            yield re.sub(r" +# .*", "", words[1])


def anchors_of(text):
    """The anchors that Markdown makes from headings."""
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower())
            for heading in re.findall(r"^#+ (.+)$", text, re.M)}


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="pptrain_documentation_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        shutil.copytree(SOURCE / "configs", cls.folder / "configs")
        (cls.folder / "build").mkdir()
        for name in ("pptrain", "pptrain_whole"):
            (cls.folder / "build" / name).symlink_to(PPTRAIN.parent / name)
        # The files that the pages call JOB.toml, tokenizer.json, *.jsonl.gz and runs/second.
        (cls.folder / "data").mkdir()
        shutil.copy(SOURCE / "configs/data/tokenizer/tokenizer.json", cls.folder)
        (cls.folder / "texts.jsonl.gz").write_bytes(gzip.compress(b'{"text": "To be"}\n'))
        one_job = dict(checkpoint={"interval": 2}, data={"path": "configs/data/tinyshakespeare.txt", "val_fraction": 0.1},
                       eval={"interval": 4, "batches": 1}, train={"seq_len": 256, "grad_accum_steps": 2})
        (cls.folder / "scripts").symlink_to(SOURCE / "scripts")
        (cls.folder / "hosts").write_text("localhost slots=2\n")
        (cls.folder / "slurm").mkdir()
        for name, text in SLURM.items():
            (cls.folder / "slurm" / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
            (cls.folder / "slurm" / name).chmod(0o755)
        (cls.folder / "JOB.toml").write_text(job(run={"dir": "runs/first"}, **one_job))
        (cls.folder / "second.toml").write_text(job(run={"dir": "runs/second"}, **one_job))
        cls.shell("build/pptrain --config second.toml")

    @classmethod
    def shell(cls, command, code=0, **extra):
        return run_line(command, PPTRAIN, cls.folder, code=code, env=environment(**extra))

    def launch(self, command):
        """Runs `command` with two processes if its launcher is installed; Open MPI's form of hosts differs from MPICH's."""
        tools = pathlib.Path(sys.executable).parent
        if command.startswith("torchrun") and not (tools / "torchrun").exists() or command.startswith("mpirun") and not is_open_mpi(MPIEXEC):
            return
        command = re.sub(r"(-np|--nproc-per-node|--ntasks) 8", r"\1 2", command).replace("mpirun", MPIEXEC or "mpirun") + LAUNCHED
        path = f"{self.folder / 'slurm'}:{tools}:{os.environ['PATH']}"
        self.assertIn("done: 4 steps", self.shell(command, PATH=path, PET_MASTER_PORT=free_port()).stdout)

    def run_as_shown(self, command):
        if "--config configs/" in command and not re.search(r"pptrain +[a-z]", command):
            command += QUICK  # otherwise it trains for minutes
        if command.startswith(("torchrun", "sbatch", "mpirun -np 8")):
            return self.launch(command)
        if command.startswith("mpirun"):
            if not MPIEXEC:
                return
            command = command.replace("mpirun", MPIEXEC, 1)
        code = 3 if " status " in command else 0  # the run has finished
        self.shell(command, code)

    def test_every_command(self):
        seen = 0
        for page in PAGES:
            for command in commands_of(page):
                if any(command.startswith(known) for known in NOT_HERE):
                    continue
                with self.subTest(page=page, command=command):
                    self.run_as_shown(command)
                    seen += 1
        self.assertGreater(seen, 20)

    def test_the_examples_of_help_and_manual(self):
        examples = re.findall(r"^  ((?:mpirun.*)?pptrain --config job.toml) ", run([PPTRAIN, "--help"], SOURCE).stdout, re.M)
        self.assertEqual(len(examples), 2)
        for command in examples:
            here = command.replace("pptrain", "build/pptrain").replace("job.toml", "JOB.toml").replace("-np 8", "-np 2")
            self.run_as_shown(here + " --set run.dir=runs/example --set checkpoint.resume=restart")

    def test_those_that_run_elsewhere_do(self):
        everything = [command for page in PAGES for command in commands_of(page)]
        for known, where in NOT_HERE.items():
            self.assertTrue(any(command.startswith(known) for command in everything), f"{known} is on no page any more")
            if (SOURCE / where).is_file():
                self.assertIn(known.split("/")[-1].split()[-1].removeprefix("test_"), (SOURCE / where).read_text())


class LoadedShell(make_pages.Shell):
    """Starts pptrain from the loaded program."""

    def __init__(self, pptrain):
        super().__init__(pptrain)
        self.env = environment(PATH=self.env["PATH"], NO_COLOR=1)

    def run(self, command, code=0):
        done = run_line(command, PPTRAIN, self.folder, code=code, env=self.env)
        return done.stdout + done.stderr


class Site(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.out = pathlib.Path(tempfile.mkdtemp(prefix="pptrain_site_"))
        cls.addClassCleanup(shutil.rmtree, cls.out, ignore_errors=True)
        with mock.patch.object(make_pages, "Shell", LoadedShell):
            make_pages.make(PPTRAIN, cls.out)
        cls.pages = cls.out / "pages"

    def test_every_link_leads_to_a_page_and_its_heading(self):
        count = 0
        for page in self.pages.rglob("*.md"):
            text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
            for path, anchor in LINK.findall(text):
                if "://" in path:
                    continue
                target = page.parent / path if path else page
                with self.subTest(page=page.relative_to(self.pages), link=f"{path}#{anchor}"):
                    self.assertTrue(target.exists())
                    if anchor:
                        self.assertIn(anchor, anchors_of(target.read_text()))
                count += 1
        self.assertGreater(count, 200)

    def test_every_command_has_a_page(self):
        commands = re.findall(r"^  (\w+)  ", run([PPTRAIN, "--help"], SOURCE).stdout.split("Subcommands:")[1], re.M)
        manual = (self.pages / "manual.md").read_text()  # has the options of --help, without a start for each command
        for command in commands:
            page = (self.pages / f"commands/{command}.md").read_text()
            self.assertIn(f"$ pptrain {command}", page)
            section = re.search(rf"^### \*\*pptrain {command}\*\*.*?(?=^##|\Z)", manual, re.M | re.S)[0]
            options = re.findall(r"^\*\*(?:-\w\*\*, \*\*)?(--[\w-]+)", section, re.M)
            self.assertIn("--help", options)
            for option in options:
                self.assertIn(option, page)

    def test_every_guide_is_in_the_navigation(self):
        navigation = json.dumps(json.loads((self.out / "mkdocs.yml").read_text())["nav"])
        for guide in (SOURCE / "docs").glob("*.md"):
            self.assertIn(f'"docs/{guide.name}"', navigation)

    def test_the_manual_page_is_whole(self):
        text = (self.pages / "manual.md").read_text()
        self.assertNotRegex(text, r"\\[f&-]|^\.[A-Z]")
        for words in ("**--max-tokens** *N*\n:   Tokens to generate", "### **pptrain check** **--config** *JOB.toml*", "## EXIT STATUS"):
            self.assertIn(words, text)

    def test_every_schedule_has_a_page_with_its_picture(self):
        reference = re.sub(r"\n# ", " ", (SOURCE / "configs/reference.toml").read_text())
        names = re.findall(r"\w+", re.search(r"Order of the passes on each rank: (.*?) \(", reference)[1].replace(" or ", " "))
        self.assertGreater(len(names), 8)
        for name in names:
            page = (self.pages / f"schedules/{name}.md").read_text()
            self.assertIn(f"]({name}.svg)", page)
            self.assertRegex(page, rf"{name}: 4 ranks, \d stages, 8 microbatches; .* bubble")
            self.assertIn("<svg", (self.pages / f"schedules/{name}.svg").read_text())

    def test_tables_of_keys_name_keys(self):
        sections = re.findall(r"^## \[(\w+)\]\n(.*?)(?=^## |\Z)", (self.pages / "reference.md").read_text(), re.M | re.S)
        keys = {f"{section}.{key}" for section, text in sections for key in re.findall(r"^\| `(\w+)` ", text, re.M)}
        rows = re.findall(r"^\| `[^|]*\| ([^|]*) \|", (SOURCE / "docs/coming_from.md").read_text(), re.M)
        named = [key for row in rows for key in re.findall(r"`([\w.]+)`", row)]
        self.assertGreater(len(named), 60)
        self.assertEqual([key for key in named if key not in keys], [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
