"""pptrain against torch.distributed.pipelining, schedule by schedule: the same job, machine and sitting, in turns.

    .venv/bin/python scripts/bench/compare.py [--schedules all] [--dtype bf16 fp32] [--isa all] [--size wide]
        [--rounds 3] [--compile] [--threads] [--markdown]

Each round runs every contender once: for each schedule pptrain under mpirun (two processes) and, if torch has the schedule,
torch under torchrun (two processes, Gloo). --threads adds pptrain with its ranks as threads, --compile adds torch under
torch.compile. All run the same model, shapes and numbers of warm-up and measured steps, one CPU thread a rank. Prints one
table: the median tokens/s over all measured steps and the peak resident memory of all ranks together. "auto" is the schedule
and split that pptrain chooses itself. Each instruction set and dtype has rows of its own. Below them the table compares the
fastest pptrain with the fastest torch, each in any dtype. A contender that fails is shown as failed, with its reason, and
left out of later rounds; the losses of the others must agree. Exits with 1 unless all is well.
"""

import argparse
import itertools
import json
import math
import sys
import tempfile
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path

from contest import (
    ISAS,
    JOB,
    SIZES,
    Figures,
    formatted,
    machine,
    own_isas,
    parse_arguments,
    run_pptrain,
    run_round,
    run_torch,
    spread,
    write_tokens,
)

# pptrain's schedules, and torch's name for the same order of passes.
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
COMPILABLE = ("gpipe", "1f1b", "interleaved_1f1b", "looped_bfs")  # torch compiles no stage with a split backward
PPTRAIN, THREADS, TORCH, COMPILED = KINDS = ("pptrain", "pptrain, threads", "torch", "torch, compiled")
# Mean losses of a few thousand random tokens differ by about 0.01 between two draws of tokens and weights. One side uses
# one draw for all schedules, so its losses differ only by rounding.
SAME_DRAW, OTHER_DRAW = 0.003, 0.05


@dataclass
class Contender:
    schedule: str  # pptrain's name
    kind: str
    dtype: str
    isa: str  # "": the processor's best
    figures: Figures = field(default_factory=Figures)
    loss: float = math.nan
    chosen: str = ""  # the schedule and split that auto chose

    def name(self) -> str:
        return ", ".join(word for word in (self.schedule, self.kind, self.dtype, self.isa) if word)

    def is_torch(self) -> bool:
        return self.kind in (TORCH, COMPILED)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", nargs="+", choices=(*SCHEDULES, "all"), default=["1f1b"], metavar="NAME",
                        help=f"all, or some of {', '.join(SCHEDULES)}; 1f1b without it")
    parser.add_argument("--split", help="layers per stage for both, such as 5,3; even without it")
    parser.add_argument("--dtype", nargs="+", choices=("bf16", "fp32"), default=["bf16"])
    parser.add_argument("--isa", nargs="+", choices=(*ISAS, "all"), default=[""], metavar="NAME",
                        help=f"instruction sets that both keep to: all that the processor has, or some of {', '.join(ISAS)}; its best without it")
    parser.add_argument("--size", choices=SIZES, default="small", help="of the model; small is that of the job file")
    args = parse_arguments(parser)
    args.isa = own_isas() if "all" in args.isa else args.isa
    return args


def contenders(args) -> list[Contender]:
    entries = []
    schedules = SCHEDULES if "all" in args.schedules else dict.fromkeys(args.schedules)
    for isa, dtype, schedule in itertools.product(args.isa, args.dtype, schedules):
        has_torch = SCHEDULES[schedule] is not None
        takes_part = {
            PPTRAIN: args.only != "torch",
            THREADS: args.only != "torch" and args.threads,
            TORCH: args.only != "pptrain" and has_torch,
            COMPILED: args.only != "pptrain" and args.compile and schedule in COMPILABLE,
        }
        entries += [Contender(schedule, kind, dtype, isa) for kind in KINDS if takes_part[kind]]
    return entries


def measure_pptrain(args, contender: Contender, folder: Path) -> None:
    settings = SIZES[args.size].pptrain() | {"distributed.pp_schedule": contender.schedule, "train.dtype": contender.dtype}
    if args.split:
        settings["distributed.pp_split"] = f"[{args.split}]"
    processes = 2 if contender.kind == PPTRAIN else 1
    records, peaks = run_pptrain(args, settings, folder, args.warmup + args.steps, processes, contender.isa)
    contender.figures.tokens_per_s += [record["tokens_per_s"] for record in records[args.warmup :]]
    contender.loss = records[-1]["loss"]
    contender.figures.peak_bytes.append(peaks)
    if contender.schedule == "auto":
        job = tomllib.loads((folder / "run" / "resolved.toml").read_text())["distributed"]
        contender.chosen = f"{job['pp_schedule']}, layers per stage {job['pp_split']}"


def measure_torch(args, contender: Contender) -> None:
    options = [*SIZES[args.size].torch(), "--schedule", SCHEDULES[contender.schedule], "--dtype", contender.dtype]
    options += ["--split", args.split] if args.split else []
    options += ["--compile"] if contender.kind == COMPILED else []
    report = run_torch(args, "pipelining_baseline.py", options, contender.isa)
    contender.figures.tokens_per_s += report["all_tokens_per_s"]
    contender.loss = report["loss"]
    contender.figures.peak_bytes.append(report["peak_bytes"])


def measure(args, contender: Contender, folder: Path) -> None:
    if contender.is_torch():
        measure_torch(args, contender)
    else:
        measure_pptrain(args, contender, folder)


def disagreements(entries: list[Contender]) -> list[str]:
    """The contenders whose last loss differs from that of the first finished contender."""
    finished = [c for c in entries if not c.figures.failure]
    found = []
    for c in finished:
        first = finished[0]
        same_side = next(other for other in finished if (other.is_torch(), other.dtype) == (c.is_torch(), c.dtype))
        for other, limit in ((first, OTHER_DRAW), (same_side, SAME_DRAW)):
            if not abs(c.loss - other.loss) <= limit:  # NaN agrees with no loss
                found.append(f"{c.name()}: loss {c.loss:.4f}, but {other.loss:.4f} of {other.name()}")
    return found


def cells(of_schedule: dict[str, Contender], kinds: list[str], figure, digits: int) -> list[str]:
    """One figure of each kind. Brackets after torch's figure give pptrain's as a multiple of it."""
    ours = of_schedule.get(PPTRAIN)
    row = []
    for kind in kinds:
        c = of_schedule.get(kind)
        if c is None or c.figures.failure:
            row.append("failed" if c else "-")
            continue
        text = f"{figure(c):,.{digits}f}"
        if kind in (TORCH, COMPILED) and ours and not ours.figures.failure:
            text += f" ({figure(ours) / figure(c):.2f}x)"
        row.append(text)
    return row


def table(entries: list[Contender]) -> list[list[str]]:
    kinds = [kind for kind in KINDS if any(c.kind == kind for c in entries)]
    rows = [["schedule", "dtype", "instructions", *(f"{kind}: tokens/s" for kind in kinds), *(f"{kind}: GiB" for kind in kinds)]]
    for schedule, dtype, isa in dict.fromkeys((c.schedule, c.dtype, c.isa) for c in entries):
        of_schedule = {c.kind: c for c in entries if (c.schedule, c.dtype, c.isa) == (schedule, dtype, isa)}
        speeds = cells(of_schedule, kinds, lambda c: c.figures.speed(), digits=0)
        peaks = cells(of_schedule, kinds, lambda c: c.figures.peak() / 2**30, digits=2)
        rows.append([schedule, dtype, isa or "best", *speeds, *peaks])
    return rows


def fastest(entries: list[Contender]) -> list[str]:
    """pptrain's fastest against torch's fastest by instruction set and schedule; torch's is 1F1B for schedules that only pptrain has."""
    lines = []
    for isa, schedule in dict.fromkeys((c.isa, c.schedule) for c in entries):
        ours = [c for c in entries if (c.isa, c.schedule) == (isa, schedule) and not c.is_torch()]
        peers = schedule if SCHEDULES[schedule] else "1f1b"
        theirs = [c for c in entries if (c.isa, c.schedule) == (isa, peers) and c.is_torch()]
        if ours and theirs:
            best, rival = (max(group, key=lambda c: c.figures.speed()) for group in (ours, theirs))
            lines.append(f"{best.name()}: {best.figures.speed() / rival.figures.speed():.2f} times the speed of {rival.name()}")
    return lines


def losses(entries: list[Contender]) -> str:
    values = [c.loss for c in entries]
    return f"losses after the last step lie between {min(values):.4f} and {max(values):.4f}"


def report(args, entries: list[Contender], name: str) -> None:
    import torch  # only for its version

    print(f"machine: {name}")
    print(f"job: {JOB.name}, size {args.size}, split {args.split or 'even'}, torch {torch.__version__},")
    print(f"     {args.rounds} rounds of {args.steps} steps after {args.warmup} to warm up\n")
    print(formatted(table(entries), args.markdown, names=3))
    print("\nIn brackets: pptrain's as a multiple of torch's. GiB: peak resident memory of all ranks together.")
    finished = [c for c in entries if not c.figures.failure]
    for line in fastest(finished):
        print(line)
    if finished:
        print(f"{spread(finished)}; {losses(finished)}")
    for c in entries:
        if c.chosen:
            print(f"{c.name()}: {c.chosen}")
        if c.figures.failure:
            print(f"{c.name()} failed: {c.figures.failure}")
    for line in disagreements(entries):
        print(line)


def main() -> int:
    args = arguments()
    entries, name = contenders(args), machine()
    with tempfile.TemporaryDirectory(prefix="pptrain-bench-") as temporary:
        folder = Path(temporary)
        write_tokens(folder / "tokens.bin", args.warmup + args.steps, SIZES[args.size].vocab)
        for turn in range(args.rounds):
            run_round(args, entries, lambda contender: measure(args, contender, folder), f"round {turn + 1}")
    report(args, entries, name)
    if args.json:
        args.json.write_text(json.dumps({"machine": name, "runs": [asdict(c) for c in entries]}, indent=1) + "\n")
    return 1 if disagreements(entries) or any(c.figures.failure for c in entries) else 0


if __name__ == "__main__":
    sys.exit(main())
