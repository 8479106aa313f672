"""What a restart takes when a rank or a host dies under scripts/elastic.sh, part by part.

    sudo .venv/bin/python scripts/bench/elastic_times.py [--kills 5] [--kinds rank host store] [--memory] [--verify] [--markdown]

This machine imitates three hosts (elastic_hosts.py) with two processes each, for the six ranks of the default job. Between kills the job
makes new steps. Checkpoints lie on disk, with --memory also copies in the hosts' memory. `host` kills one that has not torchrun's meeting
point, `store` the one that has it; it comes back before the next kill. --verify compares the end with an undisturbed run. The parts of a
restart, each from the end of the one before:

    found      the other ranks have ended
    torchrun   new processes of ranks have started
    start      they have met and resumed from the checkpoint
    step       metrics.jsonl has a step that was not there before

Needs root, iproute2 and the Python torch; ends with status 2 otherwise.
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from elastic_hosts import ROOT, Host, Hosts, Run, name_of, wait, why_not

PARTS = ("found", "torchrun", "start", "step")


def trial(kind: str, hosts: list[Host], run: Run, draw: random.Random) -> dict:
    """Kills a rank or a host, and takes the times of what follows."""
    before = run.last_step()
    wait(lambda: run.last_step() >= before + 3, "three steps")
    old = {pid for host in hosts for pid in host.ranks()}
    store = next(host for host in hosts if host.has_store())
    victims = {"rank": [host for host in hosts if host.ranks()], "host": [host for host in hosts if host is not store], "store": [store]}
    victim = draw.choice(victims[kind])
    process = draw.choice(victim.ranks()) if kind == "rank" else 0
    reached, resumes, start = run.last_step(), run.resumes(), time.monotonic()
    if kind == "rank":
        os.kill(process, signal.SIGKILL)
    else:
        victim.die()
    times, at = {}, start

    def mark(part: str, condition) -> None:
        nonlocal at
        wait(condition, part)
        now = time.monotonic()
        times[part], at = now - at, now

    mark("found", lambda: not any(name_of(pid) == "pptrain" for pid in old))
    mark("torchrun", lambda: any(host.ranks() for host in hosts))
    mark("start", lambda: run.resumes() > resumes)
    mark("step", lambda: run.last_step() > reached)
    times["all"] = at - start
    times["lost"] = reached - run.resumed_at()
    if kind != "rank":
        victim.start()
        wait(lambda: all(host.ranks() for host in hosts), "the host's return")
        wait(lambda: run.resumes() > resumes + 1, "a start with all hosts")
    return times


def verify(run: Run, pptrain: Path, job: Path, settings: list[str]) -> str:
    """Stops the run, and says how its last checkpoint differs from that of a run that nothing disturbed."""
    subprocess.run([pptrain, "stop", run.folder], check=True, capture_output=True)
    step = run.last_step()
    whole = run.folder.parent / "whole"
    words = [word for s in (*settings, f"train.steps={step}", f"run.dir={whole}") for word in ("--set", s)]
    subprocess.run([pptrain, "--config", job, *words], check=True, capture_output=True, cwd=ROOT)
    steps = run.steps()
    if steps != list(range(1, step + 1)):
        return f"metrics.jsonl has {len(steps)} steps, of which {len(set(steps))} are different, instead of {step}"
    done = subprocess.run([pptrain, "diff", "--state", *(f / f"checkpoints/step_{step}" for f in (run.folder, whole))], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pptrain", type=Path, default=ROOT / "build/pptrain")
    parser.add_argument("--job", type=Path, default=ROOT / "configs/shakespeare.toml")
    parser.add_argument("--kills", type=int, default=5, help="of each kind")
    parser.add_argument("--kinds", nargs="+", default=["rank", "host", "store"], choices=["rank", "host", "store"])
    parser.add_argument("--memory", action="store_true", help="copies in memory, at most one a second")
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    if reason := why_not():
        print(f"elastic_times.py {reason}", file=sys.stderr)
        sys.exit(2)
    pptrain = arguments.pptrain.resolve()
    settings = ["distributed.pp=3", "distributed.dp_shard=2", "train.grad_accum_steps=6", "distributed.heartbeat_s=3", "train.steps=1000000",
                "lr_schedule.name=constant", "checkpoint.keep_last_n=2", "eval.interval=0", "eval.generate_interval=0", "metrics.peak_tflops=1",
                *(["checkpoint.memory_seconds=1", "checkpoint.interval=200"] if arguments.memory else ["checkpoint.interval=5"])]
    draw = random.Random(arguments.seed)
    results: dict[str, list[dict]] = {kind: [] for kind in arguments.kinds}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = Run(folder / "run")
        try:
            with Hosts(3, 2, 2, pptrain, arguments.job, [*settings, "run.dir=run"], folder, str(Path(sys.executable).parent / "torchrun")) as hosts:
                wait(lambda: run.last_step() > 10, "steps and a checkpoint")
                begin, first = time.monotonic(), run.last_step()
                for _ in range(arguments.kills):
                    for kind in arguments.kinds:
                        results[kind].append(trial(kind, hosts, run, draw))
                        print(kind, {part: round(t, 2) for part, t in results[kind][-1].items()}, file=sys.stderr, flush=True)
                print(f"{run.last_step() - first} steps in {time.monotonic() - begin:.0f} s", file=sys.stderr)
                difference = verify(run, pptrain, arguments.job, settings) if arguments.verify else ""
        except Exception:
            for log in sorted(folder.glob("*.log")):
                print(log.name, log.read_text()[:6000], file=sys.stderr)
            raise
    columns = (*PARTS, "all")
    line = "| {:5} | " + " | ".join(["{:>8}"] * len(columns)) + " | {:>8} | {:>8} |" if arguments.markdown else "{:5}" + "  {:>8}" * (len(columns) + 2)
    print(line.format("", *columns, "most", "lost"))
    if arguments.markdown:
        print("|---|" + "---:|" * (len(columns) + 2))
    for kind, trials in results.items():
        medians = [f"{statistics.median(t[part] for t in trials):.2f}" for part in columns]
        print(line.format(kind, *medians, f"{max(t['all'] for t in trials):.2f}", max(t["lost"] for t in trials)))
    if arguments.verify:
        print(difference or "equal to the bit to a run that nothing disturbed, each step once in metrics.jsonl")
        sys.exit(1 if difference else 0)


if __name__ == "__main__":
    main()
