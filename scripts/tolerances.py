"""Runs the tests that compare with a tolerance, on every instruction set and with other seeds; used by tolerances.sh.

When a test program ends, it appends a line for each place of a comparison to the file that PPTRAIN_MARGINS names:

    place<TAB>largest difference<TAB>its bound<TAB>number of comparisons

The line is of the comparison with the least margin, which is bound / difference (test/support/bounds.h and bounds.py).
Other inputs come from PPTRAIN_TEST_SEED (test/support/seed.h).
"""

import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts/bench"))
from contest import ISAS  # noqa: E402

NOT_RUN = 77  # exit code of a test program that has nothing to run
# Libraries use the same instruction set if they can: MKL does not on AMD's processors.
LIMITS = {**ISAS, "baseline": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}}
# MKL's kernels that give the same bits on every processor; they differ from the processor's own.
COMPATIBLE = {"MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "AVX2"}
QUIET = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}


@dataclass
class Margin:
    difference: float
    bound: float
    count: int
    test: str
    setting: str
    seed: int

    @property
    def margin(self):
        if math.isnan(self.difference):
            return 0.0
        return math.inf if self.difference == 0 else self.bound / self.difference


@dataclass
class Outcome:
    test: str
    setting: str
    seed: int
    passed: bool
    output: str
    margins: dict  # by place


def settings(build):
    """Environments by name: each of the processor's instruction sets, the best first, and the libraries' compatible kernels."""
    wrong = subprocess.run([build / "pptrain", "--version"], env={**os.environ, "PPTRAIN_ISA": "?"}, capture_output=True, text=True)
    found = re.search(r"this processor has: (.*?)\.", wrong.stdout + wrong.stderr)
    if not found:
        sys.exit(f"{build / 'pptrain'} does not say which instruction sets the processor has: {wrong.stderr}")
    best, *others = found[1].split(", ")
    # core_kernels ends at once if it is told to use the best one.
    return {best: {}, **{isa: {"PPTRAIN_ISA": isa, **LIMITS[isa]} for isa in others}, "compatible": COMPATIBLE}


def labelled(build, patterns):
    """The tests with the label, the longest first, so that no long test runs alone at the end."""
    command = ["ctest", "--test-dir", build, "-L", "^tolerance$", "--show-only=json-v1"]
    path = f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"
    listed = json.loads(subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True).stdout)
    tests = {}
    for test in listed["tests"]:
        properties = {property["name"]: property["value"] for property in test["properties"]}
        # ctest has no command for a program that is not built.
        if "command" in test and not properties.get("DISABLED") and (not patterns or any(re.search(p, test["name"]) for p in patterns)):
            tests[test["name"]] = (test["command"], properties)
    return dict(sorted(tests.items(), key=lambda item: -item[1][1].get("COST", 0)))


def read_margins(text, test, setting, seed):
    """The least margin of each place, from the lines of a test's programs; there may be several."""
    margins = {}
    for line in text.splitlines():
        place, difference, bound, count = line.split("\t")
        place = place.removeprefix(f"{ROOT}/").removeprefix("../")  # the compiler gets paths relative to the build's folder
        keep(margins, place, Margin(float(difference), float(bound), int(count), test, setting, seed))
    return margins


def keep(margins, place, new):
    """The line with less margin, and the number of comparisons of both."""
    old = margins.get(place)
    count = new.count + (old.count if old else 0)
    worst = new if old is None or new.margin < old.margin else old
    margins[place] = Margin(worst.difference, worst.bound, count, worst.test, worst.setting, worst.seed)


def run_test(name, test, setting, limits, seed):
    command, properties = test
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "margins"
        env = {**os.environ, **QUIET, **limits, "PPTRAIN_MARGINS": str(file), "PPTRAIN_TEST_SEED": str(seed)}
        done = subprocess.run(command, cwd=properties.get("WORKING_DIRECTORY"), env=env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        text = file.read_text() if file.exists() else ""
    passed = done.returncode in (0, NOT_RUN)
    return Outcome(name, setting, seed, passed, done.stdout, read_margins(text, name, setting, seed))


def recorded(file):
    """The lines of earlier runs: as from read_margins(), with test, setting and seed."""
    margins = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        place, difference, bound, count, test, setting, seed = line.split("\t")
        keep(margins, place, Margin(float(difference), float(bound), int(count), test, setting, int(seed)))
    return margins


def record(file, outcome):
    with open(file, "a") as out:
        for place, m in outcome.margins.items():
            out.write(f"{place}\t{m.difference:.6g}\t{m.bound:.6g}\t{m.count}\t{m.test}\t{m.setting}\t{m.seed}\n")


def table(margins, under):
    rows = [("place", "comparisons", "largest", "bound", "margin", "of", "instruction set", "seed")]
    shown = sorted((m.margin, place, m) for place, m in margins.items())
    for margin, place, m in shown:
        if margin < under and margin < math.inf:
            rows.append((place, f"{m.count}", f"{m.difference:.3g}", f"{m.bound:.3g}", f"{margin:.2f}", m.test, m.setting, f"{m.seed}"))
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(row, widths)).rstrip() for row in rows)


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(prog="scripts/tolerances.sh", description="Margins of the tests' bounds.")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help=argparse.SUPPRESS)
    parser.add_argument("--isa", nargs="+", default=["all"], metavar="NAME", help=f"some of {', '.join(LIMITS)}, and compatible")
    parser.add_argument("--seeds", type=int, default=10, help="how many (10)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first one (0: what the tests use without this script)")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time (2)")
    parser.add_argument("--record", type=pathlib.Path, metavar="FILE", help="append to FILE, print the table of all that it holds")
    parser.add_argument("--under", type=float, default=math.inf, metavar="MARGIN", help="print only bounds with less margin")
    parser.add_argument("name", nargs="*", help="regular expressions of ctest's names")
    return parser.parse_args(argv)


def chosen_settings(args):
    known = settings(args.build)
    wanted = list(known) if "all" in args.isa else args.isa
    if unknown := [name for name in wanted if name not in known]:
        sys.exit(f"--isa {' '.join(unknown)}: this processor has {', '.join(known)}")
    return {name: known[name] for name in wanted}


def run_all(args, tests):
    """Outcomes as they come."""
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        runs = [pool.submit(run_test, name, test, setting, limits, seed)
                for seed in range(args.first_seed, args.first_seed + args.seeds)
                for setting, limits in chosen_settings(args).items() for name, test in tests.items()]
        started = time.monotonic()
        for number, done in enumerate(concurrent.futures.as_completed(runs), 1):
            outcome = done.result()
            how = "" if outcome.passed else "  FAILED"
            print(f"[{number}/{len(runs)}, {time.monotonic() - started:.0f} s] {outcome.test} on {outcome.setting}, seed {outcome.seed}{how}",
                  file=sys.stderr, flush=True)
            yield outcome


def main():
    args = parse_arguments()
    tests = labelled(args.build, args.name)
    if not tests:
        sys.exit("no test with the label `tolerance` has such a name")
    margins = recorded(args.record) if args.record else {}
    failed = []
    for outcome in run_all(args, tests):
        if args.record:
            record(args.record, outcome)
        for place, margin in outcome.margins.items():
            keep(margins, place, margin)
        if not outcome.passed:
            failed.append(outcome)
    for outcome in failed:
        print(f"--- {outcome.test} on {outcome.setting}, seed {outcome.seed}:\n{outcome.output[-4000:]}")
    print(table(margins, args.under))
    exceeded = sum(m.margin < 1 for m in margins.values())
    print(f"{len(margins)} bounds, {exceeded} exceeded; {len(failed)} runs of tests failed"
          + "".join(f"\n  {o.test} on {o.setting}, seed {o.seed}" for o in failed))
    sys.exit(1 if failed or exceeded else 0)


if __name__ == "__main__":
    main()
