"""Where the time of a step goes on each rank, part by part, compared with the peaks of a core.

    .venv/bin/python scripts/bench/where_a_step_goes.py [--dtype fp32] [--threads] [--kernels] [--size wide] [--set KEY=VALUE]

Runs the benchmark job with a trace of a few steps (profile.trace). Prints, for each rank and part of the step: seconds, percent of the
step, and the GFLOP/s or GB/s of its kernels; --kernels adds a line for each kernel and GEMM shape. "between kernels" is the time of
passes and phases outside kernels: allocation, copies, the executor, the exchanges of small values. "waiting" is the bubble: for inputs,
and for the other ranks at the step's end. Above the tables: the peaks of one core of this machine, measured by core_peaks.cpp; the peak
of products is PyTorch's best, of square matrices in the job's type. "at the peaks" is the time that a rank's kernels would take at these
peaks, also as a share of its step without waiting.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from pathlib import Path

import torch
from contest import (
    HERE,
    ISAS,
    SIZES,
    add_program_arguments,
    formatted,
    machine,
    run_pptrain,
    write_tokens,
)

FIRST, STEPS = 3, 4  # traced steps
OWN_PHASES = ("data", "zero gradients", "gradient norm", "optimizer")  # the others mostly wait for other ranks
PARTS = {
    "causal_attention": "attention",
    "causal_attention_backward": "attention",
    "rms_norm": "norms",
    "add_rms_norm": "norms",
    "rms_norm_backward": "norms",
    "norm_rope": "rotary positions",
    "norm_rope_backward": "rotary positions",
    "swiglu": "SwiGLU",
    "swiglu_backward": "SwiGLU",
    "cross_entropy": "cross entropy",
    "embedding": "embedding",
    "embedding_backward": "embedding",
    "adamw": "optimizer",
    "add_squares": "gradient norm",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--size", choices=SIZES, default="small", help="of the model")
    parser.add_argument("--threads", action="store_true", help="ranks as threads, not under mpirun")
    parser.add_argument("--schedule", default="1f1b", help="distributed.pp_schedule")
    parser.add_argument("--isa", choices=ISAS, default="", help="instruction set to keep to; the processor's best without it")
    parser.add_argument("--kernels", action="store_true", help="a line for each kernel")
    add_program_arguments(parser)
    args = parser.parse_args()
    args.pptrain = args.pptrain.resolve()
    return args


def core_peaks(folder: Path) -> dict:
    program = folder / "core_peaks"
    subprocess.run(["c++", "-O3", "-march=native", str(HERE / "core_peaks.cpp"), "-o", str(program)], check=True)
    return json.loads(subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout)


def product_peak(dtype: str) -> float:
    """FLOP/s of one core in PyTorch's products of square matrices, the best of half a second for each size."""
    torch.set_num_threads(1)
    best = 0.0
    for side in (512, 1024, 2048):
        a, b = (torch.randn(side, side).to(getattr(torch, {"bf16": "bfloat16", "fp32": "float32"}[dtype])) for _ in range(2))
        end = time.perf_counter() + 0.5
        while (begin := time.perf_counter()) < end:
            torch.mm(a, b)
            best = max(best, 2 * side**3 / (time.perf_counter() - begin))
    return best


def traced(args, folder: Path) -> dict:
    steps = FIRST + STEPS - 1
    size = SIZES[args.size]
    write_tokens(folder / "tokens.bin", steps, size.vocab)
    settings = size.pptrain() | {
        "train.dtype": args.dtype,
        "distributed.pp_schedule": args.schedule,
        "profile.trace": "true",
        "profile.first_step": FIRST,
        "profile.steps": STEPS,
    }
    run_pptrain(args, settings, folder, steps, 1 if args.threads else 2, args.isa)
    return json.loads((folder / "run/trace.json").read_text())


def part_of(kernel: dict, vocab: int) -> str:
    if "product" in kernel:
        return "products of the head" if vocab in kernel["product"] else "products of the blocks"
    return PARTS.get(kernel["kernel"], "other kernels")


def busy_seconds(trace: dict, rank: int) -> float:
    """The rank's seconds in its own passes and phases, per step."""
    own = 0.0
    steps = {step["step"] for step in trace["otherData"]["steps"]}
    for event in trace["traceEvents"]:
        if event["ph"] != "X" or event["tid"] != rank or event["cat"] == "wait" or event["args"]["step"] not in steps:
            continue
        if event["cat"] != "phase" or event["name"] in OWN_PHASES:
            own += event["dur"] * 1e-6
    return own / len(steps)


def rate(seconds: float, flops: float, moved: float) -> list[str]:
    return [f"{flops / seconds / 1e9:.1f}" if flops else "", f"{moved / seconds / 1e9:.1f}" if not flops else ""]


def seconds_at_peaks(kernels: list[dict], products: float, copies: float) -> float:
    return sum(kernel["flops"] / products if kernel["flops"] else kernel["bytes"] / copies for kernel in kernels)


def table(args, trace: dict, rank: int, peaks: dict) -> list[list[str]]:
    other = trace["otherData"]
    kernels = other["kernels"][rank]
    vocab = tomllib.loads(other["job"])["model"]["vocab_size"]
    step = sum(entry["step_time_s"] for entry in other["steps"]) / len(other["steps"])
    parts = defaultdict(list)
    for kernel in kernels:
        parts[part_of(kernel, vocab)].append(kernel)
    sums = {name: [sum(k[key] for k in of_part) for key in ("seconds", "flops", "bytes")] for name, of_part in parts.items()}
    rows = [[f"rank {rank}", "s a step", "share", "GFLOP/s", "GB/s"]]

    def add(name: str, seconds: float, flops: float = 0, moved: float = 0) -> None:
        rows.append([name, f"{seconds:.3f}", f"{seconds / step:.1%}", *(rate(seconds, flops, moved) if flops or moved else ["", ""])])

    for name in sorted(sums, key=lambda name: -sums[name][0]):
        add(name, *sums[name])
        for kernel in parts[name] if args.kernels else ():
            shape = " " + " x ".join(map(str, kernel["product"])) if "product" in kernel else ""
            add(f"  {kernel['kernel']}{shape}, {kernel['calls']:.0f} times", kernel["seconds"], kernel["flops"], kernel["bytes"])
    busy = busy_seconds(trace, rank)
    add("between kernels", busy - sum(kernel["seconds"] for kernel in kernels))
    add("waiting", step - busy)
    add("step", step, sum(kernel["flops"] for kernel in kernels))
    if "products" in peaks:
        least = seconds_at_peaks(kernels, peaks["products"], peaks["copy_bytes"])
        rows.append(["at the peaks, of what is not waiting", f"{least:.3f}", f"{least / busy:.1%}", "", ""])
    return rows


def main() -> int:
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="pptrain-where-") as temporary:
        peaks = core_peaks(Path(temporary))
        if not args.isa:  # PyTorch would use more
            peaks["products"] = product_peak(args.dtype)
        trace = traced(args, Path(temporary))
    other = trace["otherData"]
    print(f"machine: {machine()}")
    print(f"one core: {peaks['flops'] / 1e9:.0f} GFLOP/s in fp32, copies {peaks['copy_bytes'] / 1e9:.1f} GB/s, y += a x {peaks['add_bytes'] / 1e9:.1f} GB/s")
    if "products" in peaks:
        print(f"products in {args.dtype}: {peaks['products'] / 1e9:.0f} GFLOP/s")
    print(f"job: {args.size}, {args.dtype}, {other['schedule']}, layers {other['layers_per_stage']}, {'threads' if args.threads else 'mpirun'}")
    for rank in range(len(other["kernels"])):
        print()
        print(formatted(table(args, trace, rank, peaks), args.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
