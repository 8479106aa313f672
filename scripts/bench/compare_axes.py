"""pptrain's sharded data and tensor parallelism against PyTorch's: the same job, machine and sitting, in turns.

    .venv/bin/python scripts/bench/compare_axes.py [--axes dp_shard tp] [--rounds 3] [--compile] [--threads] [--markdown]

The job is llama_bench.toml without a pipeline, on two ranks of one thread each, the same tokens a step on every layout:
dp_replicate 2 (pptrain alone), dp_shard 2 (against FSDP2) and tp 2 (against torch.distributed.tensor.parallel), both on Gloo.
Settings of dp_shard are the same on both sides: weights kept for the whole step, or freed after each pass; gradients summed
once a step, or after each microbatch. Before the first round each layout of pptrain takes a few steps from torch's initial
weights, untimed: losses and gradient norms of both sides must agree. Then each round runs every contender once. Prints one
table, the ratio of the fastest settings, and dp_shard against dp_replicate. Exits with 1 unless all is well.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from contest import (
    HERE,
    JOB,
    MICROBATCHES,
    Figures,
    RunFailed,
    execute,
    formatted,
    machine,
    parse_arguments,
    run_pptrain,
    run_round,
    run_torch,
    set_options,
    spread,
    write_tokens,
)

AXES = ("dp_replicate", "dp_shard", "tp")
PPTRAIN, THREADS, TORCH, COMPILED = ("pptrain", "pptrain, threads", "torch", "torch, compiled")
SHARDINGS = ((False, "step"), (True, "step"), (True, "microbatch"))  # weights freed after each pass; when gradients are summed
CHECKED_STEPS = 3  # steps with compared losses and gradient norms
# From the same weights and tokens: largest difference of a loss, and largest relative difference of a gradient norm.
LOSS_LIMIT = {"bf16": 1e-3, "fp32": 2e-5}
NORM_LIMIT = {"bf16": 5e-3, "fp32": 1e-4}


@dataclass
class Contender:
    axis: str
    program: str
    setting: str
    reduce: str = ""  # when a data-parallel layout sums gradients
    keys: dict = field(default_factory=dict)  # pptrain's
    command: list[str] = field(default_factory=list)  # torch's: the baseline and its options
    figures: Figures = field(default_factory=Figures)
    course: list[tuple[float, float]] = field(default_factory=list)  # loss and gradient norm, step by step
    planned: dict = field(default_factory=dict)  # a rank's bytes by kind, from pptrain plan

    def name(self) -> str:
        return ", ".join(part for part in (f"{self.axis} 2", self.setting, self.program) if part)

    def is_torch(self) -> bool:
        return self.program in (TORCH, COMPILED)

    def largest_rank(self) -> int:
        return max(max(run) for run in self.figures.peak_bytes)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", nargs="+", choices=AXES, default=AXES, help="all of them without it")
    parser.add_argument("--casts", choices=("autocast", "fsdp"), default="autocast", help="see tp_baseline.py")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    args = parse_arguments(parser)
    if args.warmup + args.steps < CHECKED_STEPS:
        sys.exit(f"--warmup and --steps: at least {CHECKED_STEPS} together")
    return args


def replicated(program: str) -> Contender:
    keys = {"distributed.dp_replicate": 2, "distributed.reduce_gradients": "step", "train.grad_accum_steps": MICROBATCHES // 2}
    return Contender("dp_replicate", program, "sums each step", "step", keys)


def sharded(program: str, reshard: bool, reduce: str) -> Contender:
    setting = f"weights {'freed' if reshard else 'kept'}, sums each {reduce}"
    keys = {
        "distributed.dp_shard": 2,
        "distributed.reshard_after_forward": str(reshard).lower(),
        "distributed.reduce_gradients": reduce,
        "train.grad_accum_steps": MICROBATCHES // 2,
    }
    command = ["fsdp_baseline.py", "--microbatches", str(MICROBATCHES // 2), "--reduce", reduce]
    command += ["--reshard"] if reshard else []
    return Contender("dp_shard", program, setting, reduce, keys, command)


def tensor_parallel(args, program: str, style: str) -> Contender:
    keys = {"distributed.tp": 2, "train.grad_accum_steps": MICROBATCHES}
    command = ["tp_baseline.py", "--microbatches", str(MICROBATCHES), "--style", style, "--casts", args.casts]
    return Contender("tp", program, "sequence parallel" if style == "sequence" else style, keys=keys, command=command)


def contenders(args) -> list[Contender]:
    ours = [PPTRAIN, *([THREADS] if args.threads else [])] if args.only != "torch" else []
    theirs = [TORCH, *([COMPILED] if args.compile else [])] if args.only != "pptrain" else []
    of_axis = {
        "dp_replicate": [replicated(program) for program in ours],
        "dp_shard": [sharded(program, *setting) for setting in SHARDINGS for program in ours + theirs],
        "tp": [tensor_parallel(args, program, "sequence") for program in ours + theirs]
        + [tensor_parallel(args, program, "all-reduce") for program in theirs],
    }
    return [contender for axis in AXES if axis in args.axes for contender in of_axis[axis]]


def pptrain_steps(args, contender: Contender, folder: Path, steps: int, keys: dict | None = None):
    settings = {"train.dtype": args.dtype, "distributed.pp": 1} | contender.keys | (keys or {})
    return run_pptrain(args, settings, folder, steps, 1 if contender.program == THREADS else 2)


def check_pptrain(args, contender: Contender, folder: Path) -> None:
    """The contender's course from torch's weights, and its planned bytes for a rank."""
    start = {"model.init": "hf", "model.hf_dir": folder / "hf"}
    records, _ = pptrain_steps(args, contender, folder, CHECKED_STEPS, start)
    contender.course = [(record["loss"], record["grad_norm"]) for record in records]
    keys = {"distributed.pp": 1, "data.path": folder / "tokens.bin", "train.dtype": args.dtype} | contender.keys
    plan = [str(args.pptrain), "plan", "--format", "json", "--config", str(JOB), *set_options(keys)]
    plan += [word for setting in args.set for word in ("--set", setting)]
    contender.planned = json.loads(execute(plan))["per_rank"][0]["bytes"]


def check(args, entries: list[Contender], folder: Path) -> None:
    ours = [c for c in entries if not c.is_torch()]
    if ours:
        execute([sys.executable, str(HERE / "export_model.py"), str(folder / "hf")])
    for contender in ours:
        try:
            check_pptrain(args, contender, folder)
            outcome = f"loss {contender.course[-1][0]:.4f} after {CHECKED_STEPS} steps"
        except RunFailed as error:
            contender.figures.failure = str(error)
            outcome = f"failed: {error}"
        print(f"check: {contender.name()}: {outcome}", file=sys.stderr, flush=True)


def measure(args, contender: Contender, folder: Path) -> None:
    if contender.is_torch():
        script, *options = contender.command
        compiled = ["--compile"] if contender.program == COMPILED else []
        outcome = run_torch(args, script, ["--dtype", args.dtype, "--tokens", str(folder / "tokens.bin"), *options, *compiled])
        speeds, peaks = outcome["all_tokens_per_s"], outcome["peak_bytes"]
        contender.course = list(zip(outcome["losses"], outcome["norms"]))
    else:
        records, peaks = pptrain_steps(args, contender, folder, args.warmup + args.steps)
        speeds = [record["tokens_per_s"] for record in records[args.warmup :]]
    contender.figures.tokens_per_s += speeds
    contender.figures.peak_bytes.append(peaks)


def difference(a: Contender, b: Contender) -> tuple[float, float]:
    """Over the checked steps: the largest difference of losses, and the largest relative difference of gradient norms."""
    pairs = list(zip(a.course[:CHECKED_STEPS], b.course[:CHECKED_STEPS], strict=True))
    return max(abs(x[0] - y[0]) for x, y in pairs), max(abs(x[1] - y[1]) / y[1] for x, y in pairs)


def disagreements(args, finished: list[Contender]) -> list[str]:
    """Contenders whose course differs from the last one's (torch's if it takes part); also pptrain's data-parallel layouts
    that sum alike but differ in a bit."""
    found = []
    for c in finished:
        loss, norm = difference(c, finished[-1])
        if not (loss <= LOSS_LIMIT[args.dtype] and norm <= NORM_LIMIT[args.dtype]):  # NaN agrees with nothing
            found.append(f"{c.name()} does not train as {finished[-1].name()}: losses differ by {loss:.1e}, norms by {norm:.1e}")
    ours = [c for c in finished if c.reduce and not c.is_torch()]
    for c in ours:
        first = next(other for other in ours if other.reduce == c.reduce)
        if c.course != first.course:
            found.append(f"{c.name()} has not the bits of {first.name()}")
    return found


def table(entries: list[Contender]) -> list[list[str]]:
    rows = [["layout", "setting", "program", "tokens/s", "best step", "GiB, a rank", "GiB, both"]]
    for c in entries:
        row = [f"{c.axis} 2", c.setting, c.program]
        if c.figures.failure:
            row += ["failed", "-", "-", "-"]
        else:
            of_rank = "-" if c.program == THREADS else f"{c.largest_rank() / 2**30:.2f}"
            speeds = [f"{c.figures.speed():,.0f}", f"{max(c.figures.tokens_per_s):,.0f}"]
            row += [*speeds, of_rank, f"{c.figures.peak() / 2**30:.2f}"]
        rows.append(row)
    return rows


def beside_torch(axis: str, finished: list[Contender]) -> str | None:
    of_axis = [c for c in finished if c.axis == axis]
    ours, theirs = ([c for c in of_axis if c.is_torch() == torch] for torch in (False, True))
    if not ours or not theirs:
        return None
    best, rival = (max(group, key=lambda c: c.figures.speed()) for group in (ours, theirs))
    peaks = f"{best.figures.peak() / rival.figures.peak():.2f} times the memory"
    ratio = best.figures.speed() / rival.figures.speed()
    return f"{best.name()}: {ratio:.2f} times the speed of {rival.name()}, {peaks}"


def beside_replicas(finished: list[Contender]) -> list[str]:
    """Each of pptrain's dp_shard layouts against dp_replicate in the same program."""
    lines = []
    for c in finished:
        whole = next((w for w in finished if w.axis == "dp_replicate" and w.program == c.program), None)
        if c.axis != "dp_shard" or whole is None:
            continue
        time = whole.figures.speed() / c.figures.speed()
        peak = c.figures.peak() / whole.figures.peak()
        kinds = ", ".join(f"{kind} {c.planned[kind] / 1e6:.0f} of {whole.planned[kind] / 1e6:.0f}" for kind in
                          ("weights", "gradients", "optimizer"))
        lines.append(f"{c.name()}: {time:.3f} times the step of dp_replicate 2, {peak:.2f} times its peak memory; "
                     f"planned MB of a rank: {kinds}")
    return lines


def report(args, entries: list[Contender], name: str, found: list[str]) -> None:
    import torch  # only for its version

    finished = [c for c in entries if not c.figures.failure]
    print(f"machine: {name}")
    print(f"job: {JOB.name} without pp, {args.dtype}, torch {torch.__version__}, two ranks of one thread,")
    print(f"     {args.rounds} rounds of {args.steps} steps after {args.warmup} to warm up\n")
    print(formatted(table(entries), args.markdown, names=3))
    print("\ntokens/s: median and best of all measured steps. GiB: peak resident memory, of the larger rank and of both.")
    lines = [line for axis in AXES if (line := beside_torch(axis, finished))] + beside_replicas(finished)
    lines += [spread(finished)] if finished else []
    lines += [f"{c.name()} failed: {c.figures.failure}" for c in entries if c.figures.failure]
    if finished:
        apart = [difference(c, finished[-1]) for c in finished]
        loss, norm = (max(column) for column in zip(*apart))
        lines.append(f"over {CHECKED_STEPS} steps from the same weights, losses differ by up to {loss:.1e}, norms by {norm:.1e}")
    print("\n".join(lines + found))


def main() -> int:
    args = arguments()
    entries, name = contenders(args), machine()
    with tempfile.TemporaryDirectory(prefix="pptrain-bench-") as temporary:
        folder = Path(temporary)
        write_tokens(folder / "tokens.bin", args.warmup + args.steps)
        check(args, entries, folder)
        for turn in range(args.rounds):
            run_round(args, entries, lambda contender: measure(args, contender, folder), f"round {turn + 1}")
    finished = [c for c in entries if not c.figures.failure]
    found = disagreements(args, finished)
    report(args, entries, name, found)
    if args.json:
        args.json.write_text(json.dumps({"machine": name, "runs": [asdict(c) for c in entries]}, indent=1) + "\n")
    return 1 if found or len(finished) < len(entries) else 0


if __name__ == "__main__":
    sys.exit(main())
