"""Runs the steps of `correct` and `bench` from a pack on this machine, and writes report.json, report.md and steps.log.

Usage: run.py correct|bench... [--device cuda|cpu] [--out DIR] [--only STEP]... [--quick] [--patience N] [--pack DIR]
"""

import argparse
import datetime
import json
import pathlib
import sys
import tempfile
import time

import bench
import correct
import machine
from report import FAILED, PASSED, SKIPPED, Outcome, Report
from step import Context, Failed, Skipped

UNSUITABLE = 4
HERE = pathlib.Path(__file__).resolve().parents[2]  # a checkout, or a pack
SUITES = {"correct": correct.SUITE, "bench": bench.SUITE}


def read_arguments():
    inside = (HERE / "pack.json").exists()
    parser = argparse.ArgumentParser(prog="gpu.sh run")
    parser.add_argument("suites", nargs="+", choices=list(SUITES))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda",
                        help="cpu: the same steps without a GPU, where they can; tests the steps themselves")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / ("report" if inside else "build-gpu/report"))
    parser.add_argument("--only", action="append", metavar="STEP", help="this step alone; may be repeated")
    parser.add_argument("--quick", action="store_true", help="fewer steps of training and fewer repetitions")
    parser.add_argument("--patience", type=float, default=1, help="all time limits times this, for a slow or busy machine")
    parser.add_argument("--pack", type=pathlib.Path, default=HERE if inside else HERE / "build-gpu/pack")
    arguments = parser.parse_args()
    known = [step.name for suite in arguments.suites for step in SUITES[suite].steps]
    for name in arguments.only or []:
        if name not in known:
            parser.error(f"--only {name}: the steps are {', '.join(known)}")
    return arguments


def look_around(arguments):
    """The torch, what this machine is and what the pack is. Raises Unsuitable."""
    if not (arguments.pack / "pack.json").exists():
        raise machine.Unsuitable(f"no pack in {arguments.pack}: scripts/gpu.sh pack makes one where the compilers are")
    pack = json.loads((arguments.pack / "pack.json").read_text())
    torch = machine.find_torch(with_cuda=bool(pack["architectures"]))
    gpu = machine.find_gpu() if arguments.device == "cuda" else {}
    return torch, machine.describe(torch) | gpu, pack


def run_step(suite, step, context, patience):
    """The outcome, whatever the step does."""
    context.begin(step.name, step.limit * patience)
    started = time.monotonic()
    try:
        if context.left() <= 0:
            raise Failed(f"not started: the {suite.limit * patience:.0f} s of `{suite.name}` were over")
        kind, text = PASSED, step.run(context)
    except Skipped as reason:
        kind, text = SKIPPED, str(reason)
    except Failed as reason:
        kind, text = FAILED, str(reason)
    except (OSError, ValueError, KeyError) as error:  # a file that a program should have left, say
        kind, text = FAILED, f"{type(error).__name__}: {error}"
    return Outcome(suite.name, step.name, step.about, kind, round(time.monotonic() - started, 2), text or "")


def main():
    arguments = read_arguments()
    try:
        torch, description, pack = look_around(arguments)
    except machine.Unsuitable as reason:
        print(f"pptrain: error: {reason}", file=sys.stderr)
        return UNSUITABLE
    arguments.out.mkdir(parents=True, exist_ok=True)
    report = Report(description, pack, arguments.device, datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S"))
    with tempfile.TemporaryDirectory(prefix="pptrain_gpu_") as work, open(arguments.out / "steps.log", "wb") as log:
        for suite in (SUITES[name] for name in arguments.suites):
            context = Context(pack=arguments.pack.resolve(), out=arguments.out.resolve(), work=pathlib.Path(work), log=log,
                              device=arguments.device, quick=arguments.quick,
                              environment=machine.environment(arguments.pack.resolve(), torch),
                              suite_deadline=time.monotonic() + suite.limit * arguments.patience)
            for step in suite.steps:
                if arguments.only and step.name not in arguments.only:
                    continue
                report.outcomes.append(outcome := run_step(suite, step, context, arguments.patience))
                report.write(arguments.out)
                first = outcome.text.splitlines()[0] if outcome.text else ""
                print(f"{outcome.outcome:8} {outcome.step:10} {outcome.seconds:6.1f} s  {first}", flush=True)
    print(f"{arguments.out}: report.md, report.json, steps.log")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
