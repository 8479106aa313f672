"""Prints "N passed, N failed" for a JUnit report of ctest, and the names of what failed.

A test executable counts with as many tests as Catch2 says that it ran, anything else (a Python test, a crash) as one.
Exits with 1 if something failed or the report holds no test.
"""

import re
import sys
import xml.etree.ElementTree as ET

# Catch2's last line: "All tests passed (40 assertions in 7 test cases)" or "test cases: 7 | 6 passed | 1 failed".
ALL_PASSED = re.compile(r"All tests passed \(\d+ assertions? in (\d+) test cases?\)")
TOTALS = re.compile(r"^test cases: *\d+(.*)$", re.MULTILINE)


def count(text: str, succeeded: bool) -> tuple[int, int]:
    """(passed, failed) of one executable, from what it printed and whether ctest took it as passed."""
    passed = failed = 0
    if found := ALL_PASSED.findall(text):
        passed = int(found[-1])
    elif found := TOTALS.findall(text):
        numbers = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed)", found[-1])}
        passed, failed = numbers.get("passed", 0), numbers.get("failed", 0)
    if succeeded:
        return max(passed, 1), 0
    return passed, max(failed, 1)


def main(path: str) -> int:
    try:
        cases = ET.parse(path).getroot().iter("testcase")
    except (OSError, ET.ParseError) as error:
        print(f"no test report: {error}")
        print("0 passed, 1 failed")
        return 1
    passed = failed = skipped = 0
    for case in cases:
        status = case.get("status")
        if status in ("disabled", "notrun"):
            skipped += 1
            print(f"not run: {case.get('name')}")
            continue
        ok, bad = count(case.findtext("system-out") or "", status == "run")
        passed, failed = passed + ok, failed + bad
        if bad:
            print(f"failed: {case.get('name')}")
    if skipped:
        print(f"{skipped} not run")
    print(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
