"""pptrain beside torch.distributed.pipelining, schedule by schedule: the same job, machine and sitting, in turns.

    .venv/bin/python scripts/bench/compare.py [--schedules all] [--rounds 3] [--compile] [--threads] [--markdown]

Each round runs every contender once: of each schedule pptrain under mpirun (two processes) and, where it has the schedule,
torch under torchrun (two processes, Gloo); with --threads also pptrain with its ranks as threads, with --compile also torch
under torch.compile. All run the same model, shapes and numbers of warm-up and measured steps, one CPU thread a rank. Prints
one table: the median tokens/s over all measured steps and the peak resident memory of all ranks together. "auto" is the
schedule and split that pptrain chooses itself. A contender that fails is shown as failed, with its reason, and left out of
later rounds; the losses of the others must agree. Exits with 1 unless all is well.
"""

import argparse
import array
import json
import math
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
JOB = HERE / "llama_bench.toml"
# pptrain's schedules, with torch's name for the same order of passes.
SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "Interleaved1F1B",
    "looped_bfs": "LoopedBFS",
    "zb_h1": None,
    "zb_h2": None,
    "interleaved_zb": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "v_half": None,
    "v_min": None,
    "dualpipe_v": "DualPipeV",
    "auto": None,
}
COMPILABLE = ("gpipe", "1f1b", "interleaved_1f1b", "looped_bfs")  # torch compiles no stage whose backward is split
PPTRAIN, THREADS, TORCH, COMPILED = KINDS = ("pptrain", "pptrain, threads", "torch", "torch, compiled")
VOCAB, SEQ, MICROBATCHES = 32000, 512, 8  # as in llama_bench.toml
# Mean losses of a few thousand random tokens differ by about 0.01 between two draws of tokens and weights. One side draws
# the same ones for all schedules, which leaves rounding.
SAME_DRAW, OTHER_DRAW = 0.003, 0.05
TIMEOUT_S = 900


class RunFailed(Exception):
    pass


@dataclass
class Contender:
    schedule: str  # pptrain's name
    kind: str
    tokens_per_s: list[float] = field(default_factory=list)
    peak_bytes: list[list[int]] = field(default_factory=list)  # of each run: one number per process
    loss: float = math.nan
    chosen: str = ""  # the schedule and split that auto stands for
    failure: str = ""

    def name(self) -> str:
        return f"{self.schedule}, {self.kind}"

    def speed(self) -> float:
        return statistics.median(self.tokens_per_s)

    def peak(self) -> int:
        return max(sum(run) for run in self.peak_bytes)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", nargs="+", choices=(*SCHEDULES, "all"), default=["1f1b"], metavar="NAME",
                        help=f"all, or some of {', '.join(SCHEDULES)}; 1f1b without it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--warmup", type=int, default=2, help="steps of each run that are not measured")
    parser.add_argument("--steps", type=int, default=5, help="measured steps of each run")
    parser.add_argument("--threads", action="store_true", help="time pptrain with its ranks as threads as well")
    parser.add_argument("--compile", action="store_true", help="time torch under torch.compile as well, where it allows it")
    parser.add_argument("--split", help="layers per stage for both, such as 5,3; even without it")
    parser.add_argument("--only", choices=("pptrain", "torch"), help="leave the other side out")
    parser.add_argument("--pptrain", type=Path, default=ROOT / "build" / "pptrain", help="the executable")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to pptrain")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--json", type=Path, help="also write all figures here")
    return parser.parse_args()


def contenders(args) -> list[Contender]:
    entries = []
    for schedule in SCHEDULES if "all" in args.schedules else dict.fromkeys(args.schedules):
        has_torch = SCHEDULES[schedule] is not None
        takes_part = {
            PPTRAIN: args.only != "torch",
            THREADS: args.only != "torch" and args.threads,
            TORCH: args.only != "pptrain" and has_torch,
            COMPILED: args.only != "pptrain" and args.compile and schedule in COMPILABLE,
        }
        entries += [Contender(schedule, kind) for kind in KINDS if takes_part[kind]]
    return entries


def environment() -> dict[str, str]:
    env = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    if os.geteuid() == 0:
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return env


def reason(errors: str) -> str:
    """The line of a failed command's errors that says most: the first exception, or the first line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    exceptions = (line for line in lines if re.search(r"\b\w*(Error|Exception): \S", line))
    return next(exceptions, lines[0] if lines else "no message")


def execute(command: list[str]) -> str:
    """Standard output of the command."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=environment(), cwd=ROOT, start_new_session=True, **pipes)
    try:
        output, errors = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"no end after {TIMEOUT_S} s") from None
    finally:
        if process.poll() is None:  # too slow, or interrupted: mpirun and torchrun end their ranks on SIGTERM
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate()
    if process.returncode:
        print(f"{' '.join(command)}\n{output[-2000:]}\n{errors[-4000:]}", file=sys.stderr)
        raise RunFailed(f"exit status {process.returncode}: {reason(errors)}")
    return output


def write_tokens(path: Path, steps: int) -> None:
    generator = random.Random(0)
    count = steps * MICROBATCHES * SEQ + 1
    path.write_bytes(array.array("H", (generator.randrange(VOCAB) for _ in range(count))).tobytes())


def run_pptrain(args, contender: Contender, folder: Path) -> None:
    run_dir, peaks = folder / "run", folder / "peaks"
    shutil.rmtree(run_dir, ignore_errors=True)
    peaks.unlink(missing_ok=True)
    settings = {
        "run.dir": run_dir,
        "data.path": folder / "tokens.bin",
        "train.steps": args.warmup + args.steps,
        "train.dtype": args.dtype,
        "distributed.pp_schedule": contender.schedule,
    }
    if args.split:
        settings["distributed.pp_split"] = f"[{args.split}]"
    command = [sys.executable, str(HERE / "peak_rss.py"), str(peaks), str(args.pptrain), "--config", str(JOB)]
    for setting in [f"{key}={value}" for key, value in settings.items()] + args.set:
        command += ["--set", setting]
    if contender.kind == PPTRAIN:
        command = ["mpirun", "-np", "2", "--bind-to", "none", *command]
    execute(command)
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if "tokens_per_s" in record][args.warmup :]
    if len(steps) != args.steps:
        raise RunFailed(f"metrics.jsonl has {len(steps)} measured steps where {args.steps} were asked for")
    contender.tokens_per_s += [step["tokens_per_s"] for step in steps]
    contender.loss = steps[-1]["loss"]
    contender.peak_bytes.append([int(line) for line in peaks.read_text().splitlines()])
    if contender.schedule == "auto":
        job = tomllib.loads((run_dir / "job.toml").read_text())["distributed"]
        contender.chosen = f"{job['pp_schedule']}, layers per stage {job['pp_split']}"


def run_torch(args, contender: Contender, _folder: Path) -> None:
    command = ["torchrun", "--nproc-per-node", "2", str(HERE / "pipelining_baseline.py"), "--dtype", args.dtype]
    command += ["--schedule", SCHEDULES[contender.schedule], "--warmup", str(args.warmup), "--steps", str(args.steps)]
    command += ["--split", args.split] if args.split else []
    command += ["--compile"] if contender.kind == COMPILED else []
    report = json.loads(execute(command).splitlines()[-1])
    contender.tokens_per_s += report["all_tokens_per_s"]
    contender.loss = report["loss"]
    contender.peak_bytes.append(report["peak_bytes"])


def run_round(args, entries: list[Contender], folder: Path, label: str) -> None:
    for contender in entries:
        if contender.failure:
            continue
        try:
            run = run_torch if contender.kind in (TORCH, COMPILED) else run_pptrain
            run(args, contender, folder)
            outcome = f"{statistics.median(contender.tokens_per_s[-args.steps :]):.0f} tokens/s"
        except RunFailed as error:
            contender.failure = str(error)
            outcome = f"failed: {error}"
        print(f"{label}: {contender.name()}: {outcome}", file=sys.stderr, flush=True)


def machine() -> str:
    facts = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    features = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in facts.get("flags", "").split()]
    total = next(int(x.split()[1]) for x in Path("/proc/meminfo").read_text().splitlines() if x.startswith("MemTotal"))
    model = f"{facts.get('model name', 'unknown CPU')} (family {facts.get('cpu family')}, model {facts.get('model')})"
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, {' '.join(features)}, {total / 2**20:.0f} GiB, load {os.getloadavg()[0]:.1f}"


def disagreements(entries: list[Contender]) -> list[str]:
    """The contenders whose last loss is not the one of the first that finished."""
    finished = [c for c in entries if not c.failure]
    found = []
    for c in finished:
        first = finished[0]
        same_side = next(other for other in finished if other.kind.split(",")[0] == c.kind.split(",")[0])
        for other, limit in ((first, OTHER_DRAW), (same_side, SAME_DRAW)):
            if not abs(c.loss - other.loss) <= limit:  # a loss that is not a number agrees with none
                found.append(f"{c.name()}: loss {c.loss:.4f}, but {other.loss:.4f} of {other.name()}")
    return found


def cells(of_schedule: dict[str, Contender], kinds: list[str], figure, digits: int) -> list[str]:
    """One figure of each kind; in brackets after torch's, pptrain's as a multiple of it."""
    ours = of_schedule.get(PPTRAIN)
    row = []
    for kind in kinds:
        c = of_schedule.get(kind)
        if c is None or c.failure:
            row.append("failed" if c else "-")
            continue
        text = f"{figure(c):,.{digits}f}"
        if kind in (TORCH, COMPILED) and ours and not ours.failure:
            text += f" ({figure(ours) / figure(c):.2f}x)"
        row.append(text)
    return row


def table(entries: list[Contender]) -> list[list[str]]:
    kinds = [kind for kind in KINDS if any(c.kind == kind for c in entries)]
    rows = [["schedule", *(f"{kind}: tokens/s" for kind in kinds), *(f"{kind}: GiB" for kind in kinds)]]
    for schedule in dict.fromkeys(c.schedule for c in entries):
        of_schedule = {c.kind: c for c in entries if c.schedule == schedule}
        speeds = cells(of_schedule, kinds, Contender.speed, digits=0)
        peaks = cells(of_schedule, kinds, lambda c: c.peak() / 2**30, digits=2)
        rows.append([schedule, *speeds, *peaks])
    return rows


def formatted(rows: list[list[str]], markdown: bool) -> str:
    if markdown:
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([lines[0], "|---" + "|---:" * (len(rows[0]) - 1) + "|", *lines[1:]])
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]) for row in rows
    )


def spread(entries: list[Contender]) -> str:
    relative = [speed / c.speed() - 1 for c in entries for speed in c.tokens_per_s]
    return f"single steps lie between {min(relative):+.0%} and {max(relative):+.0%} of their contender's median"


def losses(entries: list[Contender]) -> str:
    values = [c.loss for c in entries]
    return f"losses after the last step lie between {min(values):.4f} and {max(values):.4f}"


def report(args, entries: list[Contender], name: str) -> None:
    import torch  # only for its version

    print(f"machine: {name}")
    print(f"job: {JOB.name}, {args.dtype}, split {args.split or 'even'}, torch {torch.__version__},")
    print(f"     {args.rounds} rounds of {args.steps} steps after {args.warmup} to warm up\n")
    print(formatted(table(entries), args.markdown))
    print("\nIn brackets: pptrain's as a multiple of torch's. GiB: peak resident memory of all ranks together.")
    finished = [c for c in entries if not c.failure]
    if finished:
        print(f"{spread(finished)}; {losses(finished)}")
    for c in entries:
        if c.chosen:
            print(f"{c.name()}: {c.chosen}")
        if c.failure:
            print(f"{c.name()} failed: {c.failure}")
    for line in disagreements(entries):
        print(line)


def main() -> int:
    args = parse_arguments()
    if args.only != "torch" and not args.pptrain.exists():
        sys.exit(f"{args.pptrain} is missing: build it with scripts/build.sh")
    entries, name = contenders(args), machine()
    with tempfile.TemporaryDirectory(prefix="pptrain-bench-") as temporary:
        folder = Path(temporary)
        write_tokens(folder / "tokens.bin", args.warmup + args.steps)
        for turn in range(args.rounds):
            run_round(args, entries, folder, f"round {turn + 1}")
    report(args, entries, name)
    if args.json:
        args.json.write_text(json.dumps({"machine": name, "runs": [vars(c) for c in entries]}, indent=1) + "\n")
    return 1 if disagreements(entries) or any(c.failure for c in entries) else 0


if __name__ == "__main__":
    sys.exit(main())
