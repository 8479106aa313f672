"""scripts/test_summary.py on outputs of ctest, Catch2 and unittest."""

import contextlib
import io
import pathlib
import sys
import tempfile
import unittest
from xml.sax.saxutils import escape

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import test_summary

UNITTEST = """test_plan (__main__.CommandLine.test_plan) ... ok
test_mpi (__main__.CommandLine.test_mpi) ... skipped 'built without MPI'
test_docs (__main__.CommandLine.test_docs)
With a docstring. ... ok

----------------------------------------------------------------------
Ran 3 tests in 1.204s

OK (skipped=1)
"""


def write_report(file, cases):
    text = "".join(f'<testcase name="{name}" status="{status}"><skipped message="{escape(output)}"/>'
                   f"<system-out>{escape(output)}</system-out></testcase>" for name, status, output in cases)
    file.write(f"<testsuite>{text}</testsuite>")
    file.flush()


def summary(*cases, again=None, left_out=None):
    """(exit code, lines) for cases (name, status, output), for cases of a second run, and for names left out."""
    with tempfile.NamedTemporaryFile("w", suffix=".xml") as first, tempfile.NamedTemporaryFile("w", suffix=".xml") as second:
        write_report(first, cases)
        write_report(second, again or [])
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = test_summary.main(first.name, second.name if again else None, left_out)
    return code, out.getvalue().splitlines()


class Summary(unittest.TestCase):
    def test_cases_are_counted(self):
        code, lines = summary(("a", "run", "All tests passed (40 assertions in 7 test cases)\n"), ("b", "run", UNITTEST),
                              ("c", "run", "whatever a script prints"))
        self.assertEqual((code, lines), (0, ["not run: b: test_mpi: built without MPI", "1 not run", "10 passed, 0 failed"]))

    def test_what_the_quick_tier_leaves_out_is_named_before_the_last_line(self):
        code, lines = summary(("a", "run", "All tests passed (40 assertions in 7 test cases)\n"), left_out=["b", "c"])
        self.assertEqual((code, lines), (0, ["the quick tier ran 1 of 3 programs of tests; scripts/test.sh --full runs these too: b, c",
                                             "7 passed, 0 failed"]))

    def test_a_program_that_ran_no_test_has_failed(self):
        for nothing in ("Ran 0 tests in 0.000s\n\nOK\n", "test cases: 0\n"):
            code, lines = summary(("a", "run", UNITTEST), ("b", "run", nothing))
            self.assertEqual((code, lines[-1]), (1, "2 passed, 1 failed"))

    def test_failures(self):
        code, lines = summary(
            ("a", "fail", "test cases:  7 |  6 passed | 1 failed\nassertions: 9 | 8 passed | 1 failed\n"),
            ("b", "fail", "Ran 5 tests in 2s\n\nFAILED (failures=1, errors=1, skipped=1)\n"),
            ("c", "fail", "Segmentation fault"))
        self.assertEqual(code, 1)
        self.assertEqual(lines, ["failed: a", "failed: b", "failed: c", "not run: b: a test of 5", "1 not run",
                                 "8 passed, 4 failed"])

    def test_what_did_not_run(self):
        code, lines = summary(
            ("mpi", "run", "not run: MPI does it: built without MPI\nnot run: MPI does it: built without MPI\n"
                           "All tests passed (2 assertions in 3 test cases)\n"),
            ("only_mpi", "run", "not run: MPI: built without MPI\nAll tests passed (1 assertion in 1 test case)\n"),
            ("python", "disabled", ""))
        self.assertEqual((code, lines), (0, ["not run: mpi: MPI does it: built without MPI",
                                             "not run: only_mpi: MPI: built without MPI", "not run: python", "3 not run",
                                             "2 passed, 0 failed"]))

    def test_a_program_that_is_not_there_has_failed(self):
        code, lines = summary(("isa", "notrun", "SKIP_RETURN_CODE=4"), ("gone", "notrun", "Unable to find executable"),
                              ("a", "run", "well"))
        self.assertEqual((code, lines), (1, ["failed: gone", "not run: isa", "1 not run", "1 passed, 1 failed"]))

    def test_what_passed_at_the_second_time_is_counted_apart(self):
        failed = "test cases:  7 |  6 passed | 1 failed\nassertions: 9 | 8 passed | 1 failed\n"
        passed = "All tests passed (40 assertions in 7 test cases)\n"
        first = [("a", "run", passed), ("b", "fail", failed), ("c", "fail", failed)]
        code, lines = summary(*first, again=[("b", "run", passed), ("c", "run", passed)])
        self.assertEqual((code, lines), (0, ["depends on a clock, failed at first and passed by itself: b: 1",
                                             "depends on a clock, failed at first and passed by itself: c: 1",
                                             "2 passed at the second time", "19 passed, 0 failed"]))
        code, lines = summary(*first, again=[("b", "run", passed), ("c", "fail", failed)])
        self.assertEqual((code, lines), (1, ["depends on a clock, failed at first and passed by itself: b: 1", "failed: c",
                                             "1 passed at the second time", "19 passed, 1 failed"]))
        code, lines = summary(*first, again=[("b", "run", passed)])  # c depends on no clock
        self.assertEqual((code, lines), (1, ["depends on a clock, failed at first and passed by itself: b: 1", "failed: c",
                                             "1 passed at the second time", "19 passed, 1 failed"]))
        self.assertEqual(summary(("d", "fail", "killed"), ("a", "run", passed), again=[("d", "run", "well")])[1][1:],
                         ["1 passed at the second time", "7 passed, 0 failed"])

    def test_what_is_to_run_again(self):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as report:
            write_report(report, [("a", "fail", ""), ("b.c", "fail", ""), ("d", "run", ""), ("e", "fail", "")])
            self.assertEqual(test_summary.failed_of(report.name, ["b.c", "d", "e", "unknown"]), r"^(b\.c|e)$")
            self.assertEqual(test_summary.failed_of(report.name, ["d"]), "")

    def test_nothing_at_all_is_a_failure(self):
        self.assertEqual(summary()[0], 1)
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(test_summary.main("/nonexistent"), 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
