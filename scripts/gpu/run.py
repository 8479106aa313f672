"""Runs the steps of `correct` and `bench` from a pack on this machine, and writes report.json, report.md and steps.log.

Usage: run.py [correct|bench]... [--device cuda|cpu] [--out DIR] [--only STEP]... [--limit SECONDS] [--quick] [--patience N] [--pack DIR]
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
from report import FAILED, NO_TIME, NOT_RUN, PASSED, Outcome, Report
from step import Context, Failed, NotRun

UNSUITABLE = 4
HERE = pathlib.Path(__file__).resolve().parents[2]  # a checkout, or a pack
SUITES = {"correct": correct.SUITE, "bench": bench.SUITE}
EVERYTHING = 570  # seconds of a run that names no suite: machines lent by the minute often end commands after ten minutes


def read_arguments():
    inside = (HERE / "pack.json").exists()
    parser = argparse.ArgumentParser(prog="gpu.sh run")
    # Checked below, since argparse refuses an empty list for `choices`.
    parser.add_argument("suites", nargs="*", metavar="correct|bench", help=f"without one: both, in {EVERYTHING} s")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda",
                        help="cpu: the same steps without a GPU, where they can; tests the steps themselves")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / ("report" if inside else "build-gpu/report"))
    parser.add_argument("--only", action="append", metavar="STEP", help="this step alone; may be repeated")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="of all steps together; the sum of theirs without it")
    parser.add_argument("--quick", action="store_true", help="fewer steps of training and fewer repetitions")
    parser.add_argument("--patience", type=float, default=1, help="the steps' limits times this, for a slow or busy machine")
    parser.add_argument("--pack", type=pathlib.Path, default=HERE if inside else HERE / "build-gpu/pack")
    arguments = parser.parse_args()
    for suite in arguments.suites:
        if suite not in SUITES:
            parser.error(f"{suite}: the suites are {', '.join(SUITES)}")
    known = [step.name for _, step in plan(arguments.suites, None)]
    for name in arguments.only or []:
        if name not in known:
            parser.error(f"--only {name}: the steps are {', '.join(known)}")
    return arguments


def plan(suites, only):
    """Pairs of suite and step, in the order of running."""
    steps = [(name, step) for name, suite in SUITES.items() for step in suite.steps if not suites or name in suites]
    return sorted((pair for pair in steps if not only or pair[1].name in only), key=lambda pair: pair[1].last)


def again(arguments):
    """The command to run steps of this kind again."""
    return " ".join(["scripts/gpu.sh run", *arguments.suites, *(["--device cpu"] if arguments.device == "cpu" else [])])


def look_around(arguments):
    """Descriptions of this machine and of the pack, and the environment of its programs. Raises Unsuitable."""
    if not (arguments.pack / "pack.json").exists():
        raise machine.Unsuitable(f"no pack in {arguments.pack}: scripts/gpu.sh pack makes one where the compilers are")
    pack = json.loads((arguments.pack / "pack.json").read_text())
    torch = machine.find_torch(with_cuda=bool(pack["architectures"]))
    gpu = machine.find_gpu() if arguments.device == "cuda" else {}
    environment = machine.environment(arguments.pack.resolve(), torch)
    machine.check_start(arguments.pack.resolve() / "bin/pptrain", environment)
    return machine.describe(torch) | gpu, pack, environment


def refuse(arguments, started, reason):
    """Writes a report if nothing could run, so that the reason is in the files that come back."""
    values = {"refused": reason, "passed": False, "exit_code": UNSUITABLE, "device": arguments.device, "started": started}
    (arguments.out / "report.json").write_text(json.dumps(values, indent=2) + "\n")
    about = f"- device of the steps: {arguments.device}\n- started: {started} UTC\n"
    (arguments.out / "report.md").write_text(f"# Nothing ran: {reason}\n\n{about}")


def deadline_of(steps, patience, end):
    """The deadline of the first of `steps`, or None if it would have less than half of its limit until `end`.

    It has its limit and the seconds that the steps before it did not use, but never the time of later steps.
    """
    limit, now = steps[0][1].limit * patience, time.monotonic()
    saved = end - now - sum(step.limit for _, step in steps) * patience
    return min(end, now + limit + max(0.0, saved)) if end - now >= limit / 2 else None


def run_step(suite, step, context, patience, deadline, end):
    """Returns an outcome whatever the step does."""
    started = time.monotonic()
    limit = step.limit * patience
    if deadline is None:
        left = max(0.0, end - started)
        return Outcome(suite, step.name, step.about, NOT_RUN, 0, f"{NO_TIME}{left:.0f} s were left of the {limit:.0f} s that it may need")
    context.begin(step.name, deadline)
    try:
        kind, text = PASSED, step.run(context)
    except NotRun as reason:
        kind, text = NOT_RUN, str(reason)
    except Failed as reason:
        kind, text = FAILED, str(reason)
    except (OSError, ValueError, KeyError) as error:  # a file that a program should have left, say
        kind, text = FAILED, f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - started
    if kind == FAILED and context.left() <= 0 and seconds < limit:
        kind, text = NOT_RUN, f"{NO_TIME}stopped after {seconds:.0f} of its {limit:.0f} s, when the time of all steps was over\n{text}"
    return Outcome(suite, step.name, step.about, kind, round(seconds, 2), text or "", step.advice if kind == FAILED else "")


def run_steps(arguments, report, context, steps, end):
    for i, (suite, step) in enumerate(steps):
        outcome = run_step(suite, step, context, arguments.patience, deadline_of(steps[i:], arguments.patience, end), end)
        report.outcomes.append(outcome)
        report.write(arguments.out)
        kind, text = outcome.words
        print(f"{kind:13} {outcome.step:10} {outcome.seconds:6.1f} s  {text}", flush=True)


def main():
    started = time.monotonic()
    arguments = read_arguments()
    steps = plan(arguments.suites, arguments.only)
    usual = sum(step.limit for _, step in steps) * arguments.patience
    end = started + (arguments.limit or (usual if arguments.suites else min(usual, EVERYTHING * arguments.patience)))
    arguments.out.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    try:
        description, pack, environment = look_around(arguments)
    except machine.Unsuitable as reason:
        print(f"pptrain: error: {reason}", file=sys.stderr)
        refuse(arguments, now, str(reason))
        return UNSUITABLE
    report = Report(description, pack, arguments.device, now, again(arguments))
    with tempfile.TemporaryDirectory(prefix="pptrain_gpu_") as work, open(arguments.out / "steps.log", "wb") as log:
        context = Context(pack=arguments.pack.resolve(), out=arguments.out.resolve(), work=pathlib.Path(work), log=log,
                          device=arguments.device, quick=arguments.quick, environment=environment, figures=report.figures)
        run_steps(arguments, report, context, steps, end)
    print(f"{report.summary}\n{arguments.out}: report.md, report.json, steps.log")
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
