"""Stages of Llama 3 8B in PyTorch, compiled: gpu_bench's section `stages` is compared with them.

    python3 scripts/bench/gpu_torch_stage.py --out torch.json
    python3 scripts/bench/gpu_torch_stage.py --device cpu --small --eager --out torch.json

Forward and backward passes of random microbatches in the order of a 1F1B rank, timed with CUDA's events (on a CPU with its
clock), as in gpu_bench. Gradients accumulate in bf16, which is less work than pptrain's float32. The first back end of
attention is measured on every stage, further ones on the middle stage. Needs only torch.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from gpu_stage_model import BACK_ENDS, LLAMA_8B, PLACES, SMALL, build_stage, flops_per_token

TURNS = 3  # different inputs


class Marks:
    """Time marks on the device's clock."""

    def __init__(self, device: str):
        self.events = []
        self.gpu = device == "cuda"

    def mark(self) -> None:
        if self.gpu:
            self.events.append(torch.cuda.Event(enable_timing=True))
            self.events[-1].record()
        else:
            self.events.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Seconds between each mark and the next one."""
        pairs = list(zip(self.events, self.events[1:]))
        if not self.gpu:
            return [end - begin for begin, end in pairs]
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in pairs]


class Microbatches:
    def __init__(self, stage, sizes, sequence: int, device: str):
        self.stage, self.outputs = stage, {}
        shape = (1, sequence)
        ids = [torch.randint(sizes.vocab, shape, device=device) for _ in range(2 * TURNS)]
        hidden = [torch.randn(*shape, sizes.hidden, device=device, dtype=torch.bfloat16) for _ in range(2 * TURNS)]
        self.labels = ids[:TURNS]
        self.inputs = ids[TURNS:] if stage.embedding is not None else hidden[:TURNS]
        self.gradients = None if stage.head is not None else [1e-3 * x for x in hidden[TURNS:]]

    def forward(self, i: int) -> None:
        x = self.inputs[i % TURNS]
        if self.stage.embedding is None:
            x = x.detach().requires_grad_()
        self.outputs[i] = self.stage(x, self.labels[i % TURNS])

    def backward(self, i: int) -> None:
        output = self.outputs.pop(i)
        output.backward(None if self.gradients is None else self.gradients[i % TURNS])

    def run(self, count: int, in_flight: int, marks: Marks) -> tuple[list[float], list[float]]:
        """Seconds of each forward and of each backward pass."""
        order = []
        marks.mark()
        for i in range(count + in_flight - 1):
            if i < count:
                self.forward(i)
                marks.mark()
                order.append(0)
            if i >= in_flight - 1:
                self.backward(i - in_flight + 1)
                marks.mark()
                order.append(1)
        times = ([], [])
        for kind, seconds in zip(order, marks.seconds()):
            times[kind].append(seconds)
        return times


def host_seconds(work: Microbatches, device: str) -> float:
    """Host seconds to queue one microbatch's passes on an idle device."""
    seconds = []
    for i in range(5):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        work.forward(i)
        work.backward(i)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def attention_kernels(work: Microbatches, device: str) -> list[str]:
    """Names of the kernels that computed attention, so that the row shows the back end."""
    activity = torch.profiler.ProfilerActivity
    try:
        with torch.profiler.profile(activities=[activity.CUDA if device == "cuda" else activity.CPU]) as profile:
            work.forward(0)
            work.backward(0)
        keys = [event.key[:80] for event in profile.key_averages()]
    except RuntimeError as error:  # a machine may forbid its counters
        return [f"not known: {error}"]
    words = ("flash", "cudnn", "sdpa", "fmha", "scaled_dot_product")
    return sorted({key for key in keys if any(word in key.lower() for word in words)})


def measure(args, sizes, place, stage, sequence: int) -> dict:
    work = Microbatches(stage, sizes, sequence, args.device)
    begin = time.perf_counter()
    work.run(2, 1, Marks(args.device))  # compiles
    compile_s = time.perf_counter() - begin
    estimate = sum(map(sum, work.run(2, 1, Marks(args.device)))) / 2
    work.run(place.in_flight, place.in_flight, Marks(args.device))  # allocates memory for everything in flight
    count = place.in_flight + max(2, min(400, int(args.seconds / estimate)))
    if args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    forward, backward = work.run(count, place.in_flight, Marks(args.device))
    total = sum(forward) + sum(backward)
    flops = flops_per_token(sizes, place, sequence)
    row = {"microbatches": count, "total_s": total, "microbatch_s": total / count}
    row |= {"forward_s": statistics.median(forward), "backward_s": statistics.median(backward)}
    row |= {"tokens_per_s": count * sequence / total, "flops_per_token": flops, "flops_per_s": count * sequence / total * flops}
    row |= {"peak_bytes": torch.cuda.max_memory_allocated() if args.device == "cuda" else None}
    row |= {"host_s": host_seconds(work, args.device), "compile_s": compile_s}
    return row | {"attention_kernels": attention_kernels(work, args.device)}


def rows_of(args, sizes, place, back_end: str):
    """A row for each sequence; a failed one has its error."""
    stage = None
    for sequence in args.sequences or sizes.sequences:
        row = {"name": place.name, "blocks": place.blocks, "sequence": sequence, "attention": back_end}
        row |= {"compiled": not args.eager, "in_flight": place.in_flight}
        try:
            if stage is None:
                stage = build_stage(sizes, place, back_end, not args.eager, args.device)
            row |= measure(args, sizes, place, stage, sequence)
        except Exception as error:  # any error: the other rows must still be measured
            row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        yield row
        if stage is not None:
            stage.zero_grad(set_to_none=True)


def parse_arguments() -> argparse.Namespace:
    names = [place.name for place in PLACES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of the figures, JSON")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="small sizes, for a CPU")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--stages", nargs="+", choices=names, default=names)
    parser.add_argument("--sequences", nargs="+", type=int, help="tokens of a microbatch; 4096 and 8192 without it")
    parser.add_argument("--attention", nargs="+", choices=list(BACK_ENDS), help="back ends; all that the device has without it")
    parser.add_argument("--seconds", type=float, help="of each measurement; 1.5, with --small 0.05")
    args = parser.parse_args()
    args.seconds = args.seconds or (0.05 if args.small else 1.5)
    args.attention = args.attention or (["flash"] if args.device == "cpu" else list(BACK_ENDS))
    return args


def main() -> int:
    args = parse_arguments()
    torch.manual_seed(1)
    torch.compiler.config.force_disable_caches = True  # a cached graph may use another back end
    torch._dynamo.config.recompile_limit = 32
    sizes = SMALL if args.small else LLAMA_8B
    name = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    report = {"device": name, "torch": torch.__version__, "small": args.small, "rows": []}
    for back_end in args.attention:
        for place in PLACES:
            further = back_end != args.attention[0]
            if place.name not in args.stages or (further and place.name != "middle"):
                continue
            for row in rows_of(args, sizes, place, back_end):
                report["rows"].append(row)
                result = row.get("error") or f"{row['tokens_per_s']:.0f} tokens/s, {row['flops_per_s'] / 1e12:.1f} TFLOP/s"
                print(f"torch: {place.name} stage, {row['sequence']} tokens, {back_end}: {result}", flush=True)
                args.out.write_text(json.dumps(report, indent=1) + "\n")
            if args.device == "cuda":
                torch.cuda.empty_cache()
    return int(any("error" in row for row in report["rows"]))


if __name__ == "__main__":
    sys.exit(main())
