"""What a restart takes when ranks or hosts die under scripts/elastic.sh, and whether it keeps what docs/going_on.md promises.

    sudo .venv/bin/python scripts/bench/elastic_times.py [--deaths 18] [--seed 1] [--kinds rank host store ...] [--pause 4] [--folder DIR]

This machine imitates three hosts (elastic_hosts.py) with two processes each, for the six ranks of the default job. The seed draws the
deaths (elastic_deaths.py), each kind equally often. Between deaths the job makes steps with all hosts for --pause seconds on average. The
parts of a restart, each from the end of the one before:

    found      the ranks of before have ended
    torchrun   new processes of ranks have started
    start      they have met and resumed from the newest state
    step       metrics.jsonl has a step that was not there before

A line tells of each death as it goes, so Ctrl-C keeps what it has. In the end come the times by kind and the goodput: the part of the time
that the steps would have taken without deaths. Last, the run is compared with one that nothing disturbed, which takes as long as its steps
(--no-verify leaves it out). Status 1: a promise is broken, in time, steps lost, bits, or something that grows or is left behind. Needs
root, iproute2 and the Python torch; ends with status 2 otherwise.
"""

import argparse
import contextlib
import math
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from elastic_deaths import Deaths
from elastic_hosts import ROOT, Host, Hosts, Run, name_of, wait, why_not
from elastic_leaks import Leaks

PARTS = ("found", "torchrun", "start", "step")
PROCESSES = 2  # of a host
# Seconds from the death to the next new step, for 99 of 100 deaths. An agent may be the one with the meeting point. A pair has no limit:
# the run waits until one of the two hosts is back.
LIMITS = {"rank": 4, "start": 4, "stopped": 10, "cable": 10, "signal": 10, "host": 10, "store": 13, "agent": 13, "pair": math.inf}
INTERVAL = 50  # steps between checkpoints on disk


def quantile(values: list[float], part: float) -> float:
    """The least value that this part of the values does not exceed."""
    return sorted(values)[math.ceil(part * len(values)) - 1]


def time_of(record: dict) -> float:
    return datetime.fromisoformat(record["time"]).timestamp()


def trial(kind: str, deaths: Deaths) -> dict:
    """A death, and the times of what follows."""
    run, hosts, times = deaths.run, deaths.hosts, {}
    with getattr(deaths, kind)():
        at = deaths.at

        def mark(part: str, condition) -> None:
            nonlocal at
            wait(condition, part)
            now = time.monotonic()
            times[part], at = now - at, now

        mark("found", lambda: not any(name_of(pid) == "pptrain" for pid in deaths.ranks))
        before = {record["step"]: time_of(record) for record in run.records(1 << 17) if "grad_norm" in record}
        reached = max(deaths.reached, *before)
        mark("torchrun", lambda: any(host.ranks() for host in hosts))
        mark("start", lambda: run.resumes() > deaths.starts)
        mark("step", lambda: run.last_step() > reached)
        times["all"] = at - deaths.at
        resumed = run.start()["step"]
        again = [before[step] for step in range(resumed, reached + 1) if step in before]
        times["lost"], times["lost_s"] = reached - resumed, again[-1] - again[0] if again else 0.0
        times["step_s"] = max((end - begin for begin, end in zip(again, again[1:])), default=0.0)
    return times


def settle(deaths: Deaths, seconds: float) -> None:
    """Steps with all hosts, for these seconds."""
    wait(lambda: all(len(host.ranks()) == PROCESSES for host in deaths.hosts), "all hosts")
    reached = deaths.run.last_step()
    wait(lambda: deaths.run.last_step() >= reached + 3, "three steps")
    time.sleep(seconds)


def kinds_of(deaths: int, kinds: list[str], draw: random.Random) -> list[str]:
    """In a random order, each of them equally often."""
    drawn = []
    while len(drawn) < deaths:
        drawn += draw.sample(kinds, len(kinds))
    return drawn[:deaths]


def broken(kind: str, times: dict) -> str:
    """Which promise about lost steps a death has broken; "" if none."""
    if kind == "pair":
        return "" if times["lost"] <= INTERVAL + 10 else f"{times['lost']} steps lost, with a checkpoint every {INTERVAL}"
    most = 1 + times["step_s"]
    return "" if times["lost_s"] <= most else f"{times['lost_s']:.2f} s of steps lost, more than {most:.2f}"


def table(results: dict[str, list[dict]]) -> list[str]:
    """Prints the times by kind; returns promises that are broken."""
    print("\n| | deaths |", " | ".join(PARTS), "| p50 | p99 | most | limit | steps lost |\n|---|" + "---:|" * (len(PARTS) + 6))
    problems = []
    for kind, trials in results.items():
        if not trials:
            continue
        alls = [trial["all"] for trial in trials]
        medians = [f"{statistics.median(trial[part] for trial in trials):.1f}" for part in PARTS]
        p99 = quantile(alls, 0.99)
        limit = f"{LIMITS[kind]}" if math.isfinite(LIMITS[kind]) else ""
        print(f"| {kind} | {len(trials)} |", " | ".join(medians),
              f"| {quantile(alls, 0.5):.1f} | {p99:.1f} | {max(alls):.1f} | {limit} | {max(trial['lost'] for trial in trials)} |")
        if p99 > LIMITS[kind]:
            problems.append(f"{kind}: p99 {p99:.1f} s is more than {limit}")
    return problems


def end(run: Run, pptrain: Path, hosts: list[Host]) -> None:
    """Stops the run."""
    subprocess.run([pptrain, "stop", run.folder], check=True, capture_output=True)
    for host in hosts:
        wait(lambda: host.script.poll() is not None, f"the end of {host.name}")
        if host.script.poll():
            raise RuntimeError(f"{host.name} has ended with {host.script.poll()}")


def verify(run: Run, pptrain: Path, job: Path, settings: list[str]) -> str:
    """How the last checkpoint differs from that of a run that nothing disturbed."""
    step = run.last_step()
    whole = run.folder.parent / "whole"
    words = [word for s in (*settings, f"train.steps={step}", f"run.dir={whole}") for word in ("--set", s)]
    subprocess.run([pptrain, "--config", job, *words], check=True, capture_output=True, cwd=ROOT)
    steps = run.steps()
    if steps != list(range(1, step + 1)):
        return f"metrics.jsonl has {len(steps)} steps, of which {len(set(steps))} are different, instead of {step}"
    done = subprocess.run([pptrain, "diff", "--state", *(f / f"checkpoints/step_{step}" for f in (run.folder, whole))], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def measure(deaths: Deaths, leaks: Leaks, drawn: list[str], pause: float, results: dict[str, list[dict]]) -> list[str]:
    """All deaths, into the results; prints what they say together, also if it is interrupted. Returns promises that are broken."""
    run, problems = deaths.run, []
    wait(lambda: run.last_step() > 10, "ten steps")
    began, first = time.monotonic(), run.last_step()
    wait(lambda: run.last_step() >= first + 40, "steps")
    quiet = (time.monotonic() - began) / (run.last_step() - first)
    began, first = time.monotonic(), run.last_step()
    try:
        for number, kind in enumerate(drawn, 1):
            settle(deaths, deaths.draw.uniform(0, 2 * pause))
            leaks.look()
            times = trial(kind, deaths)
            results[kind].append(times)
            parts = ", ".join(f"{part} {times[part]:.2f}" for part in PARTS)
            problem = broken(kind, times)
            print(f"{number:4} {kind:8} {times['all']:6.2f} s: {parts}; {times['lost']} steps lost, {times['lost_s']:.2f} s  {problem}", flush=True)
            problems += [f"death {number}, {kind}: {problem}"] if problem else []
        settle(deaths, 2)
        leaks.look()
    finally:
        problems += table(results)
        wall, steps = time.monotonic() - began, run.last_step() - first
        print(f"\ngoodput {steps * quiet / wall:.2f}: {steps} steps in {wall:.0f} s, of {quiet:.3f} s without deaths\n{leaks.summary()}", flush=True)
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pptrain", type=Path, default=ROOT / "build/pptrain")
    parser.add_argument("--job", type=Path, default=ROOT / "configs/shakespeare.toml")
    parser.add_argument("--deaths", type=int, default=2 * len(Deaths.KINDS))
    parser.add_argument("--kinds", nargs="+", default=list(Deaths.KINDS), choices=Deaths.KINDS)
    parser.add_argument("--pause", type=float, default=4, help="seconds of steps between deaths, on average")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-verify", action="store_true")
    parser.add_argument("--folder", type=Path, help="keeps the run and the hosts' output here")
    arguments = parser.parse_args()
    if reason := why_not():
        print(f"elastic_times.py {reason}", file=sys.stderr)
        sys.exit(2)
    pptrain = arguments.pptrain.resolve()
    settings = ["distributed.pp=3", "distributed.dp_shard=2", "train.grad_accum_steps=6", "distributed.heartbeat_s=3", "train.steps=1000000",
                "lr_schedule.name=constant", "checkpoint.memory_seconds=1", f"checkpoint.interval={INTERVAL}", "checkpoint.keep_last_n=2",
                "eval.interval=0", "eval.generate_interval=0", "metrics.peak_tflops=1"]
    draw = random.Random(arguments.seed)
    drawn = kinds_of(arguments.deaths, arguments.kinds, draw)
    results: dict[str, list[dict]] = {kind: [] for kind in Deaths.KINDS}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() if arguments.folder is None else contextlib.nullcontext(arguments.folder) as name:
        folder = Path(name).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        run = Run(folder / "run")
        try:
            with Hosts(3, 2, PROCESSES, pptrain, arguments.job, [*settings, "run.dir=run"], folder, str(Path(sys.executable).parent / "torchrun")) as hosts:
                leaks = Leaks(hosts, run, PROCESSES)
                problems = measure(Deaths(hosts, run, draw), leaks, drawn, arguments.pause, results)
                end(run, pptrain, hosts)
                leaks.look_back()
        except Exception:
            for log in sorted(folder.glob("*.log")):
                print(log.name, log.read_text()[-6000:], file=sys.stderr)
            raise
        problems += leaks.problems
        if not arguments.no_verify:
            difference = verify(run, pptrain, arguments.job, settings)
            print(difference or "equal to the bit to a run that nothing disturbed, each step once in metrics.jsonl")
            problems += [difference] if difference else []
    print("\n".join(["broken:", *problems]) if problems else "all promises are kept")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
