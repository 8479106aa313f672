"""Shared by the PyTorch baselines: the optimizer, the clock around a step and the report that compare*.py read.

A step equals pptrain's: forward and backward passes over all microbatches with a mean cross entropy, one global gradient
norm, clipping, a fused AdamW with fp32 weights and moments. One CPU thread a rank, Gloo.
"""

import json
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F


def add_step_arguments(parser) -> None:
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16", help="of the passes; masters are fp32")
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--warmup", type=int, default=2, help="steps before the measured ones")
    parser.add_argument("--steps", type=int, default=5, help="measured steps")


def start() -> tuple[int, int]:
    """This process's rank, and the number of ranks."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def adamw(parameters) -> torch.optim.AdamW:
    decayed = [parameter for parameter in parameters if parameter.dim() == 2]
    kept = [parameter for parameter in parameters if parameter.dim() != 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": kept, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=1e-4, betas=(0.9, 0.95), fused=True)


def cross_entropy(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def read_samples(path: Path, first: int, count: int, seq: int):
    """Samples [first, first + count) of a file of uint16 tokens, with pptrain's bounds: [count, seq + 1]."""
    data = torch.from_file(str(path), size=path.stat().st_size // 2, dtype=torch.uint16)
    return torch.stack([data[i * seq : i * seq + seq + 1] for i in range(first, first + count)]).long()


def timed_steps(args, tokens_per_step: int, prepare, run) -> tuple[dict, list]:
    """Times run(prepare(step)) for every step. Returns the speeds of the measured steps, and run's result for each step."""
    tokens_per_s, outcomes = [], []
    for step in range(args.warmup + args.steps):
        data = prepare(step)
        dist.barrier()
        begin = time.perf_counter()
        outcomes.append(run(data))
        dist.barrier()
        if step >= args.warmup:
            tokens_per_s.append(tokens_per_step / (time.perf_counter() - begin))
    return {"tokens_per_s": statistics.median(tokens_per_s), "all_tokens_per_s": tokens_per_s}, outcomes


def peak_bytes() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def report(figures: dict, loss: float | None) -> None:
    """Rank 0 prints the figures as one line of JSON, with every rank's peak memory, and the loss of any rank that has it."""
    reports = [None] * dist.get_world_size()
    dist.all_gather_object(reports, {"peak_bytes": peak_bytes(), "loss": loss})
    figures["peak_bytes"] = [entry["peak_bytes"] for entry in reports]
    figures["loss"] = next(entry["loss"] for entry in reports if entry["loss"] is not None)
    if dist.get_rank() == 0:
        print(json.dumps(figures), flush=True)
    dist.destroy_process_group()
