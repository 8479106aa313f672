"""cmake --install: a moved prefix plans and trains, completes and has a manual page; one version everywhere.

Usage: install_test.py PPTRAIN BUILD CMAKE [unittest arguments]
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from pptrain import SOURCE, environment, run, sets, steps  # noqa: E402

PPTRAIN, BUILD, CMAKE = (pathlib.Path(sys.argv.pop(1)) for _ in range(3))
QUICK = sets("train.steps=2", "train.seq_len=16", "eval.interval=0", "data.val_fraction=0", "metrics.peak_tflops=1", "train.grad_accum_steps=4")


def version_of_the_project():
    return re.search(r"^project\(pptrain VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text(), re.M)[1]


def libraries_of(program):
    """Name -> path, as the loader finds them."""
    return dict(re.findall(r"^\s*(\S+) => (\S+)", run(["ldd", program], SOURCE).stdout, re.M))


class Installation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="pptrain_install_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        first = cls.folder / "first"
        for component in ("pptrain", "libraries"):
            run([CMAKE, "--install", BUILD, "--prefix", first, "--component", component], cls.folder)
        cls.prefix = cls.folder / "moved" / "it"
        cls.prefix.parent.mkdir()
        first.rename(cls.prefix)
        cls.program = cls.prefix / "bin/pptrain"

    def test_it_plans_and_trains_from_where_it_was_moved(self):
        work = self.folder / "work"
        shutil.copytree(self.prefix / "share/pptrain/configs", work / "configs")
        self.assertEqual(run([self.program, "--version"], work).stdout.split("\n")[0], f"pptrain {version_of_the_project()}")
        elsewhere = run([self.program, "check", "--config", self.prefix / "share/pptrain/configs/shakespeare.toml"], work).stdout
        self.assertIn("It would start here.", elsewhere)
        job = ["--config", "configs/shakespeare.toml", *QUICK]
        self.assertIn("tokens/s", run([self.program, "plan", *job, "--costs", "modelled"], work).stdout)
        run([self.program, *job], work)
        self.assertEqual(len(steps(work / "runs/shakespeare")), 2)

    def test_jobs_are_installed_as_they_are(self):
        for file in (SOURCE / "configs").glob("*.toml"):
            self.assertEqual((self.prefix / "share/pptrain/configs" / file.name).read_bytes(), file.read_bytes())

    def test_libraries_beside_the_program_come_first(self):
        beside = {path.name for path in (self.prefix / "lib/pptrain").iterdir()}
        self.assertTrue(any(name.startswith("libpcre2-8.so") for name in beside), beside)
        for name in ("libc.so.6", "libstdc++.so.6", "libtorch_cpu.so", "libmpi.so.40"):
            self.assertNotIn(name, beside)
        found = libraries_of(self.prefix / "bin/pptrain_whole")
        for name in beside & found.keys():
            self.assertEqual(pathlib.Path(found[name]).resolve().parent, self.prefix / "lib/pptrain", name)

    def test_a_torch_wheel_beside_the_prefix_comes_before_the_one_of_the_build(self):
        packages = self.folder / "site-packages"
        shutil.copytree(self.prefix, packages / "pptrain")
        found = pathlib.Path(libraries_of(self.prefix / "bin/pptrain_whole")["libc10.so"])
        (packages / "torch").mkdir()
        (packages / "torch/lib").symlink_to(found.parent)
        found = libraries_of(packages / "pptrain/bin/pptrain_whole")
        self.assertIn(str(packages), os.path.normpath(found["libc10.so"]))

    def test_no_program_names_the_build_folder(self):
        for name in ("pptrain", "pptrain_whole", "pptrain_cuda"):
            if name == "pptrain_cuda" and not (BUILD / name).exists():
                continue
            header = run(["readelf", "-d", self.prefix / "bin" / name], self.folder).stdout
            self.assertNotIn(f"{BUILD}/", header)
            self.assertIn("$ORIGIN/../lib/pptrain", header)

    def test_the_program_for_machines_without_a_gpu_loads_nothing_of_cuda_but_what_torch_needs(self):
        loaded = libraries_of(self.prefix / "bin/pptrain_whole")
        self.assertIn("libtorch_cpu.so", loaded)
        self.assertFalse({"libtorch_cuda.so", "libc10_cuda.so", "libnccl.so.2", "libcudnn.so.9"} & loaded.keys())

    def test_bash_completes_it(self):
        file = self.prefix / "share/bash-completion/completions/pptrain"
        script = f"source {file}; COMP_WORDS=(pptrain chec); COMP_CWORD=1; COMP_LINE='pptrain chec'; COMP_POINT=12; _pptrain; echo ${{COMPREPLY[@]}}"
        self.assertEqual(run(["bash", "-c", script], self.folder).stdout.strip(), "check")
        for other in ("share/zsh/site-functions/_pptrain", "share/fish/vendor_completions.d/pptrain.fish"):
            self.assertIn("check", (self.prefix / other).read_text())


    def test_a_wheel_of_it_starts_the_program(self):
        run([sys.executable, SOURCE / "scripts/packaging/wheel.py", self.prefix, "1.2.3", "2.11.0", self.folder / "dist"], self.folder)
        file, = (self.folder / "dist").iterdir()
        self.assertRegex(file.name, r"^pptrain-1\.2\.3-py3-none-manylinux_2_\d+_\w+\.whl$")
        packages = self.folder / "packages"
        with zipfile.ZipFile(file) as wheel:
            names = wheel.namelist()
            for entry in wheel.infolist():  # as pip does
                os.chmod(wheel.extract(entry, packages), entry.external_attr >> 16)
        recorded = (packages / "pptrain-1.2.3.dist-info/RECORD").read_text()
        self.assertEqual(sorted(line.split(",")[0] for line in recorded.splitlines()), sorted(names))
        self.assertIn("Requires-Dist: torch==2.11.0", (packages / "pptrain-1.2.3.dist-info/METADATA").read_text())
        work = self.folder / "wheel_work"
        shutil.copytree(packages / "pptrain-1.2.3.data/data/share/pptrain/configs", work / "configs")
        beside = {name.split("/")[-1] for name in names if name.startswith("pptrain/lib/")}
        needed = libraries_of(packages / "pptrain/bin/pptrain_whole")
        self.assertEqual(beside & needed.keys(), beside)  # under the names that the program loads
        command = [sys.executable, "-m", "pptrain", "check", "--config", "configs/shakespeare.toml"]
        self.assertIn("llama of 1.87 M parameters", run(command, work, env=environment(PYTHONPATH=packages)).stdout)

        # `pip install` without its download, torch.
        run([sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", self.folder / "pip", file], self.folder)
        version = run([self.folder / "pip/bin/pptrain", "--version"], work, env=environment(PYTHONPATH=self.folder / "pip")).stdout
        self.assertIn(f"pptrain {version_of_the_project()}", version)

    def test_the_launcher_names_the_package_that_is_missing(self):
        code = "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; sys.argv[0] = ''; import pptrain; pptrain.main()"
        launcher = self.folder / "launcher/pptrain"
        launcher.mkdir(parents=True)
        template = re.search(r"^LAUNCHER = \'\'\'(.*?)^\'\'\'", (SOURCE / "scripts/packaging/wheel.py").read_text(), re.M | re.S)[1]
        (launcher / "__init__.py").write_text(template.format(version="1.2.3", torch="2.11.0"))
        said = run([sys.executable, "-c", code], self.folder, 1, env=environment(PYTHONPATH=launcher.parent)).stderr
        self.assertIn("torch 2.11.0 is missing", said)


class ManualPage(unittest.TestCase):
    page = BUILD / "pptrain.1"

    def text(self):
        """The page as a reader sees it, with blanks joined."""
        shown = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-P-cbou", str(self.page)], capture_output=True, text=True)
        self.assertEqual(shown.stderr, "")
        return re.sub(r"\s+", " ", shown.stdout.replace("\u2010", "-").replace("\u2212", "-"))

    @unittest.skipUnless(shutil.which("groff"), "no groff")
    def test_it_says_what_help_says(self):
        page = self.text()
        self.assertIn(f"pptrain {version_of_the_project()}", page)
        commands = re.findall(r"^  (\w+)  ", run([PPTRAIN, "--help"], SOURCE).stdout.split("Subcommands:")[1], re.M)
        self.assertGreater(len(commands), 10)
        for command in commands:
            text = run([PPTRAIN, command, "--help"], SOURCE).stdout
            for option in re.findall(r"^  (?:-\w,)?(--[\w-]+)", text, re.M):
                self.assertIn(option, page)
            for default in re.findall(r"\(default: [^)]*\)", text):
                self.assertIn(default, page)
        self.assertIn("--in-flight N Prompts at a time; more go in waves. Bounds memory (default: 32)", page)
        self.assertIn("pptrain generate [RUN] [OPTION]...", page)


class OneVersion(unittest.TestCase):
    def test_files_that_cannot_ask_say_the_same(self):
        version = version_of_the_project()
        newest = re.search(r"^## ([\d.]+)", (SOURCE / "CHANGELOG.md").read_text(), re.M)[1]
        cited = re.search(r"^version: (\S+)", (SOURCE / "CITATION.cff").read_text(), re.M)[1]
        shown = re.findall(r"pptrain-(\d[\d.]*\d)-", (SOURCE / "README.md").read_text())
        self.assertEqual({newest, cited, *shown}, {version})


if __name__ == "__main__":
    unittest.main(verbosity=2)
