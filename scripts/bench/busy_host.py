"""How much other busy processes slow a two-rank job: pptrain's ranks as threads, under mpirun and over TCP, against torch with Gloo.

    .venv/bin/python scripts/bench/busy_host.py [--busy 6] [--rounds 3] [--steps 5] [--only threads,mpi,tcp,torch] [--markdown]

Each round times every contender on the quiet host and beside --busy processes that only compute; the job is llama_bench.toml
in fp32 under 1F1B. Prints the median step of both, their ratio, and that ratio as a multiple of torch's. With c cores a job of
two ranks that always compute would take max(1, (busy + 2) / c) times its quiet step: its fair share.

If /proc/sys/kernel/sched_autogroup_enabled is 1, Linux divides the processor among sessions first: six busy processes of one
session then take half of it from a job in another, not three quarters. So all ranks and busy processes run in this script's
session, without torchrun, since torchrun gives each rank its own session. The script checks the groups that it finds.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from contest import HERE, JOB, MICROBATCHES, ROOT, SEQ, environment, formatted, machine, set_options, write_tokens

KINDS = ("threads", "mpi", "tcp", "torch")
RANKS = 2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, default=6, help="processes that only compute")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=1, help="steps of each run that are not measured")
    parser.add_argument("--steps", type=int, default=5, help="measured steps of each run")
    parser.add_argument("--only", default=",".join(KINDS), help=f"some of {','.join(KINDS)}")
    parser.add_argument("--pptrain", type=Path, default=ROOT / "build" / "pptrain", help="the executable")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to pptrain")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    args = parser.parse_args()
    args.kinds = args.only.split(",")
    if unknown := set(args.kinds) - set(KINDS):
        parser.error(f"--only {', '.join(sorted(unknown))}: choose from {', '.join(KINDS)}")
    args.pptrain = args.pptrain.resolve()
    return args


def autogroup(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/autogroup").read_text().split()[0]
    except (OSError, IndexError):
        return ""  # a kernel without autogroups, or a process that has just ended


def descendants(pid: int) -> list[int]:
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
    return [int(child) for child in children] + [far for child in children for far in descendants(int(child))]


def rank_environments(ranks: int = RANKS) -> list[dict[str, str]]:
    """As torchrun sets them, without torchrun."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [environment() | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def commands(args, kind: str, folder: Path) -> tuple[list[str], list[dict[str, str]]]:
    """A command, and an environment for each process that runs it."""
    if kind == "torch":
        baseline = [sys.executable, str(HERE / "pipelining_baseline.py"), "--schedule", "1F1B", "--dtype", "fp32"]
        return baseline + ["--warmup", str(args.warmup), "--steps", str(args.steps)], rank_environments()
    settings = {
        "run.dir": folder / "run",
        "data.path": folder / "tokens.bin",
        "train.steps": args.warmup + args.steps,
        "train.dtype": "fp32",
    }
    command = [str(args.pptrain), "--config", str(JOB)] + set_options(settings)
    command += [word for setting in args.set for word in ("--set", setting)]
    if kind == "mpi":
        command = ["mpirun", "-np", str(RANKS), "--bind-to", "none", *command]
    return command, rank_environments() if kind == "tcp" else [environment()]


def run(args, kind: str, folder: Path) -> tuple[list[float], set[str]]:
    """Seconds of the measured steps, and the autogroups of all processes of the run."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    command, environments = commands(args, kind, folder)
    outputs = [open(folder / f"output_{rank}", "w+") for rank in range(len(environments))]
    processes = [subprocess.Popen(command, env=env, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
                 for env, out in zip(environments, outputs)]
    groups = set()
    while any(process.poll() is None for process in processes):
        for process in processes:
            groups |= {autogroup(pid) for pid in [process.pid, *descendants(process.pid)]}
        try:
            processes[0].wait(timeout=2)
        except subprocess.TimeoutExpired:
            pass
    texts = []
    for out in outputs:
        out.seek(0)
        texts.append(out.read())
        out.close()
    if any(process.returncode for process in processes):
        sys.exit(f"{kind} failed: {' '.join(command)}\n" + "\n".join(text[-3000:] for text in texts))
    if kind == "torch":
        report = json.loads(next(line for line in texts[0].splitlines() if line.startswith("{")))
        return [MICROBATCHES * SEQ / speed for speed in report["all_tokens_per_s"]], groups - {""}
    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [record["step_time_s"] for record in records if "step_time_s" in record]
    return steps[args.warmup :], groups - {""}


def main() -> None:
    args = arguments()
    quiet = {kind: [] for kind in args.kinds}
    busy = {kind: [] for kind in args.kinds}
    own = {autogroup(os.getpid())} - {""}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tokens(folder / "tokens.bin", args.warmup + args.steps)
        for round_number in range(args.rounds):
            for kind in args.kinds:
                for times, count in ((quiet, 0), (busy, args.busy)):
                    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
                    try:
                        seconds, groups = run(args, kind, folder)
                    finally:
                        for other in others:
                            other.kill()
                            other.wait()
                    times[kind] += seconds
                    if groups - own:
                        print(f"{kind}: ranks in other autogroups than the busy processes: not comparable", file=sys.stderr)
                    print(f"round {round_number + 1}: {kind}, {count} busy: {statistics.median(seconds):.3f} s", file=sys.stderr)
    ratio = {kind: statistics.median(busy[kind]) / statistics.median(quiet[kind]) for kind in args.kinds}
    rows = [["ranks", "quiet step, s", f"beside {args.busy} busy, s", "ratio", "of torch's"]]
    for kind in args.kinds:
        beside_torch = f"{ratio[kind] / ratio['torch']:.2f}" if "torch" in ratio else ""
        rows.append([kind, f"{statistics.median(quiet[kind]):.3f}", f"{statistics.median(busy[kind]):.3f}",
                     f"{ratio[kind]:.2f}", beside_torch])
    fair = max(1.0, (args.busy + RANKS) / len(os.sched_getaffinity(0)))
    print(f"{machine()}; fair share {fair:.1f}")
    print(formatted(rows, args.markdown))


if __name__ == "__main__":
    main()
