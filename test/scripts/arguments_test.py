"""Scripts refuse wrong arguments with exit code 2 before they do anything, and understand paths as their caller does."""

import os
import pathlib
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from pptrain import SOURCE, Case, environment, run  # noqa: E402

# In place of lib.sh: nothing is set up or built.
NO_SET_UP = """root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
scripts=$root/scripts
build_tests() { :; }
allow_mpirun_as_root() { :; }
build_dir() { echo "$root/build"; }
"""


class Arguments(Case):
    def refused(self, script, *arguments, **variables):
        done = run([SOURCE / "scripts" / script, *arguments], self.folder, 2, env=environment(**variables))
        self.assertEqual(done.stdout, "")
        return done.stderr

    def test_elastic(self):
        (self.folder / "job.toml").touch()
        given = ["a,b,c", "2", "job.toml"]
        for option in ("--processes", "--port", "--set"):
            self.assertIn(f"{option} needs a value", self.refused("elastic.sh", *given, option))
        for wrong in ("abc", "0", "-1", "", "1.5"):
            self.assertIn(f"--processes {wrong}: give a number", self.refused("elastic.sh", *given, "--processes", wrong))
        for wrong in ("abc", "0", "65536", "99999", "1000000"):
            self.assertIn(f"--port {wrong}: give a number", self.refused("elastic.sh", *given, "--port", wrong))
        # Good ones: the next thing that it wants is a program.
        good = ["--processes", "8", "--port", "65535", "--set", "train.steps=3"]
        self.assertIn("/no/such does not run here", self.refused("elastic.sh", *given, *good, TORCHRUN="true", PPTRAIN="/no/such"))

    def test_site(self):
        self.assertIn("unknown argument --open; see scripts/site.sh --help", self.refused("site.sh", "--open"))
        self.assertIn("scripts/site.sh", run([SOURCE / "scripts/site.sh", "--help"], self.folder).stdout)

    def test_tolerances_records_in_the_callers_folder(self):
        scripts = self.folder / "checkout/scripts"
        scripts.mkdir(parents=True)
        shutil.copy(SOURCE / "scripts/tolerances.sh", scripts)
        (scripts / "lib.sh").write_text(NO_SET_UP)
        (scripts / "tolerances.py").write_text("import os, sys\nprint(os.path.abspath(sys.argv[sys.argv.index('--record') + 1]))\n")
        (self.folder / "here").mkdir()
        done = run([scripts / "tolerances.sh", "--record", "grid.tsv"], self.folder / "here")
        self.assertEqual(done.stdout.strip(), os.path.realpath(self.folder / "here/grid.tsv"))


if __name__ == "__main__":
    unittest.main()
