"""scripts/tolerances.sh and tolerances.py: the records of tests in C++ and Python, and their table.

    tolerances_test.py TEST_SUPPORT BUILD [unittest arguments]
"""

import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SUPPORT, BUILD = (pathlib.Path(sys.argv.pop(1)).resolve() for _ in range(2))
sys.path.insert(0, str(SOURCE / "scripts"))
import tolerances  # noqa: E402

IN_PYTHON = f"""
import sys, unittest
sys.path.insert(0, {str(SOURCE / "test/support")!r})
from bounds import assert_within, seed
class Case(unittest.TestCase):
    def test(self):
        for difference in (0.25, 0.75, 0.5):
            assert_within(self, difference, 1)
        with self.assertRaises(AssertionError):
            assert_within(self, float("nan"), 1)
        print("seed", seed(7))
unittest.main()
"""


def run(command, folder, seed=0):
    file = pathlib.Path(folder) / "margins"
    done = subprocess.run(command, env={**os.environ, "PPTRAIN_MARGINS": str(file), "PPTRAIN_TEST_SEED": str(seed)},
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    return done.stdout, tolerances.read_margins(file.read_text(), "a_test", "avx2", seed)


class Tolerances(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_cplusplus_records_the_least_margin_of_each_place(self):
        _, margins = run([SUPPORT, "[bounds]"], self.folder)
        places = sorted(margins, key=lambda place: int(place.rpartition(":")[2]))
        self.assertEqual({place.rpartition(":")[0] for place in places}, {"test/support/bounds_test.cpp"})
        found = [margins[place] for place in places]
        self.assertEqual([m.count for m in found], [3, 1, 1, 1, 1])
        self.assertEqual((found[0].difference, found[0].bound), (0.75, 1))
        self.assertEqual([round(m.margin, 6) for m in found], [1.333333, math.inf, math.inf, 0.75, 0.0])

    def test_python_records_the_least_margin_of_each_place(self):
        script = self.folder / "case.py"
        script.write_text(IN_PYTHON)
        said, margins = run([sys.executable, script], self.folder, seed=3)
        self.assertIn("seed 3007", said)
        found = sorted(margins.values(), key=lambda m: -m.count)
        self.assertEqual([(m.count, m.bound, m.seed) for m in found], [(3, 1, 3), (1, 1, 3)])
        self.assertEqual([m.margin for m in found], [1 / 0.75, 0])

    def test_nothing_is_written_unasked(self):
        env = {name: value for name, value in os.environ.items() if name != "PPTRAIN_MARGINS"}
        subprocess.run([SUPPORT, "[bounds]"], env=env, cwd=self.folder, check=True, capture_output=True)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_the_table_has_the_least_margins_first(self):
        margins = {}
        for line, setting, seed in (("a.cpp:1\t1e-6\t4e-6\t10", "avx2", 0), ("a.cpp:1\t2e-6\t4e-6\t5", "avx512", 1),
                                    ("b.py:2\t0\t1e-6\t1", "avx2", 0), ("c.cpp:3\t3\t2\t1", "avx2", 0)):
            for place, margin in tolerances.read_margins(line, "a_test", setting, seed).items():
                tolerances.keep(margins, place, margin)
        lines = [line.split() for line in tolerances.table(margins, math.inf).splitlines()]
        self.assertEqual([line[0] for line in lines], ["place", "c.cpp:3", "a.cpp:1"])  # no exact ones
        self.assertEqual(lines[2], ["a.cpp:1", "15", "2e-06", "4e-06", "2.00", "a_test", "avx512", "1"])

    def test_a_record_is_read_again(self):
        file = self.folder / "record"
        outcome = tolerances.Outcome("a_test", "avx2", 4, True, "", tolerances.read_margins("a.cpp:1\t1e-6\t4e-6\t10", "a_test", "avx2", 4))
        for _ in range(2):
            tolerances.record(file, outcome)
        (place, margin), = tolerances.recorded(file).items()
        self.assertEqual((place, margin.count, margin.margin, margin.setting, margin.seed), ("a.cpp:1", 20, 4, "avx2", 4))

    def test_the_tests_and_instruction_sets_are_found(self):
        tests = tolerances.labelled(BUILD, [])
        self.assertLessEqual({"core_kernels", "app_mesh_grid", "app_oracle"}, set(tests))
        self.assertNotIn("core_kernels_avx2", tests)  # it sets the instruction set itself
        self.assertEqual(set(tolerances.labelled(BUILD, ["^core_nn$"])), {"core_nn"})
        found = tolerances.settings(BUILD)
        self.assertEqual(next(iter(found.values())), {})  # the best one, which core_kernels uses by default
        self.assertLessEqual({"baseline", "compatible"}, set(found))


if __name__ == "__main__":
    unittest.main()
