"""Prints "N passed, N failed" for a JUnit report of ctest, the names of failed tests, and the tests that did not run.

Usage: test_summary.py REPORT [REPORT_AGAIN] [--left-out [NAME...]]
       test_summary.py --again REPORT NAME...

REPORT_AGAIN is of tests that depend on a clock, failed in REPORT and ran once more. Tests that passed only then are named
and counted apart: neither as passed nor as failed. --left-out: the NAMEs of tests that the quick tier leaves out. --again
prints the NAMEs that failed in REPORT, as a regular expression for ctest -R; nothing if none failed.

A test executable counts as the number of tests that Catch2 reports, a Python test as the number that unittest reports,
anything else (a script, a crash) as one. A case that could not run here counts as neither passed nor failed: ctest left
it out, unittest skipped it, or a test executable printed "not run: CASE: reason" (test/support/not_run.h). Exits with 1
if something failed or the report holds no test.
"""

import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field

# Catch2's last line: "All tests passed (40 assertions in 7 test cases)" or "test cases: 7 | 6 passed | 1 failed".
ALL_PASSED = re.compile(r"All tests passed \(\d+ assertions? in (\d+) test cases?\)")
TOTALS = re.compile(r"^test cases: *\d+(.*)$", re.MULTILINE)
# unittest's: "Ran 30 tests in 51.2s", then "OK (skipped=5)" or "FAILED (failures=1, errors=2, skipped=3)".
UNITTEST = re.compile(r"^Ran (\d+) tests? in .*\n+(?:OK|FAILED)(?: \((.*)\))?$", re.MULTILINE)
UNITTEST_SKIPPED = re.compile(r"^(\w+) \(.*\).* \.\.\. skipped ['\"](.*)['\"]$", re.MULTILINE)
NOT_RUN = re.compile(r"^not run: (.*)$", re.MULTILINE)


@dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    not_run: list[str] = field(default_factory=list)  # in words


def count(text: str, succeeded: bool) -> Counts:
    """The counts of one executable, from its output and ctest's verdict."""
    not_run = sorted(set(NOT_RUN.findall(text)))
    if found := UNITTEST.findall(text):
        ran, details = int(found[-1][0]), found[-1][1]
        numbers = {word: int(number) for word, number in re.findall(r"(\w+)=(\d+)", details)}
        bad = numbers.get("failures", 0) + numbers.get("errors", 0)
        skipped = numbers.get("skipped", 0)
        named = [f"{name}: {reason}" for name, reason in UNITTEST_SKIPPED.findall(text)]
        not_run += named + [f"a test of {ran}"] * (skipped - len(named))
        passed = max(ran - bad - skipped, 0)  # subtests can have more errors than there are tests
    else:
        passed = bad = 0
        if found := ALL_PASSED.findall(text):
            passed = int(found[-1])
        elif found := TOTALS.findall(text):
            numbers = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed)", found[-1])}
            passed, bad = numbers.get("passed", 0), numbers.get("failed", 0)
        passed = max(passed - len(not_run), 0)
    if not succeeded or (found and not passed and not not_run):  # an executable that ran no case has a wrong filter
        return Counts(passed, max(bad, 1), not_run)
    return Counts(passed if passed or not_run else 1, 0, not_run)


def read_cases(path: str) -> dict[str, ET.Element]:
    return {case.get("name"): case for case in ET.parse(path).getroot().iter("testcase")}


def failed_of(path: str, names: list[str]) -> str:
    cases = read_cases(path)
    failed = [name for name in names if name in cases and cases[name].get("status") == "fail"]
    return f"^({'|'.join(map(re.escape, failed))})$" if failed else ""


def was_skipped(case: ET.Element) -> bool:
    """Whether the program itself says so. ctest also reports "notrun" for a program that it cannot find."""
    skipped = case.find("skipped")
    return case.get("status") == "notrun" and skipped is not None and (skipped.get("message") or "").startswith("SKIP_")


def count_case(case: ET.Element) -> Counts:
    return count(case.findtext("system-out") or "", case.get("status") == "run")


def main(path: str, again: str | None = None, left_out: list[str] | None = None) -> int:
    try:
        cases = read_cases(path)
        cases_again = read_cases(again) if again else {}
    except (OSError, ET.ParseError) as error:
        print(f"no test report: {error}")
        print("0 passed, 1 failed")
        return 1
    passed = failed = passed_again = 0
    not_run = []
    for name, case in (cases | cases_again).items():
        status = case.get("status")
        if status == "disabled" or was_skipped(case):
            not_run.append(name)
            continue
        counts = count_case(case)
        if name in cases_again and not counts.failed:
            apart = min(count_case(cases[name]).failed, counts.passed)
            print(f"depends on a clock, failed at first and passed by itself: {name}: {apart}")
            counts.passed -= apart
            passed_again += apart
        passed, failed = passed + counts.passed, failed + counts.failed
        not_run += [f"{name}: {what}" for what in counts.not_run]
        if counts.failed:
            print(f"failed: {name}")
    for what in not_run:
        print(f"not run: {what}")
    if not_run:
        print(f"{len(not_run)} not run")
    if passed_again:
        print(f"{passed_again} passed at the second time")
    if left_out:
        print(f"the quick tier ran {len(cases)} of {len(cases) + len(left_out)} programs of tests; scripts/test.sh --full runs these too: "
              + ", ".join(left_out))
    print(f"{passed} passed, {failed} failed")
    return 0 if passed + passed_again and not failed else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--again"]:
        print(failed_of(sys.argv[2], sys.argv[3:]))
    else:
        arguments, left_out = sys.argv[1:], []
        if "--left-out" in arguments:
            at = arguments.index("--left-out")
            arguments, left_out = arguments[:at], arguments[at + 1:]
        sys.exit(main(*arguments[:2], left_out=left_out))
