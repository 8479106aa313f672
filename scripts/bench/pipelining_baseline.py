"""The benchmark job of compare.py on torch.distributed.pipelining, PyTorch's own pipeline parallelism.

    torchrun --nproc-per-node 2 scripts/bench/pipelining_baseline.py --schedule 1F1B --dtype bf16

The same Llama as scripts/bench/llama_bench.toml (RMSNorm, rotary positions, SwiGLU, causal attention, untied head) from
PyTorch's own fused operations, one CPU thread a rank, Gloo. A step is what pptrain's step is: the schedule over all
microbatches with a mean cross entropy, one global gradient norm over all stages, clipping, a fused AdamW. Rank 0 prints one
JSON object: the median tokens/s of the measured steps and the peak resident memory of each rank.
"""

import argparse
import json
import os
import statistics
import time
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining._utils import generate_rank_to_stage_mapping

# RMSNorm of bf16 activations with fp32 weights: casting the weight first was measured to be no faster on the CPU.
warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")

# Schedules with two stages a rank: the second stages lie in the order of the ranks (loop), or back from the last one (v).
PLACEMENT = {
    "LoopedBFS": "loop",
    "Interleaved1F1B": "loop",
    "InterleavedZeroBubble": "loop",
    "ZBVZeroBubble": "v",
    "DualPipeV": "v",
}
SCHEDULES = ("GPipe", "1F1B", *PLACEMENT)


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.heads, self.head_dim = heads, hidden // heads
        self.q = nn.Linear(hidden, hidden, bias=False)
        self.k = nn.Linear(hidden, hidden, bias=False)
        self.v = nn.Linear(hidden, hidden, bias=False)
        self.o = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x, cos, sin):
        batch, seq, hidden = x.shape
        q, k, v = (p(x).view(batch, seq, self.heads, self.head_dim).transpose(1, 2) for p in (self.q, self.k, self.v))
        out = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        return self.o(out.transpose(1, 2).reshape(batch, seq, hidden))


def rotate(x, cos, sin):
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.input_norm = nn.RMSNorm(args.hidden, eps=1e-6)
        self.attention = Attention(args.hidden, args.heads)
        self.mlp_norm = nn.RMSNorm(args.hidden, eps=1e-6)
        self.gate = nn.Linear(args.hidden, args.ffn, bias=False)
        self.up = nn.Linear(args.hidden, args.ffn, bias=False)
        self.down = nn.Linear(args.ffn, args.hidden, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.input_norm(x), cos, sin)
        h = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def initialize(module: nn.Module | None, seed: int) -> None:
    """Random matrices from a seed that belongs to the module, so that every placement trains the same model."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters() if module else ():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02, generator=generator)


class Stage(nn.Module):
    """Layers [first, last) of the model, with the embedding on the first stage, the norm and head on the last."""

    def __init__(self, args, first: int, last: int):
        super().__init__()
        self.embedding = nn.Embedding(args.vocab, args.hidden) if first == 0 else None
        self.blocks = nn.ModuleList(Block(args) for _ in range(first, last))
        is_last = last == args.layers
        self.norm = nn.RMSNorm(args.hidden, eps=1e-6) if is_last else None
        self.head = nn.Linear(args.hidden, args.vocab, bias=False) if is_last else None
        self.dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
        dim = args.hidden // args.heads
        angle = torch.outer(torch.arange(args.seq).float(), 10000 ** (-torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("cos", torch.cat((angle, angle), -1).cos().to(self.dtype), persistent=False)
        self.register_buffer("sin", torch.cat((angle, angle), -1).sin().to(self.dtype), persistent=False)
        initialize(self.embedding, seed=0)
        for layer, block in enumerate(self.blocks, start=first):
            initialize(block, seed=layer + 1)
        initialize(self.head, seed=args.layers + 1)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            if self.embedding is not None:
                x = self.embedding(x).to(self.dtype)  # activations travel in the compute type
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            return x if self.head is None else self.head(self.norm(x))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedule", choices=SCHEDULES, default="1F1B")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16", help="bf16 is autocast over fp32 weights")
    parser.add_argument("--compile", action="store_true", help="torch.compile each stage")
    parser.add_argument("--split", help="layers of each stage, such as 5,3; even without it")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--ffn", type=int, default=1408)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=2, help="steps before the measured ones")
    parser.add_argument("--steps", type=int, default=5, help="measured steps")
    return parser.parse_args()


def stage_bounds(args, stages: int) -> list[int]:
    if args.split:
        sizes = [int(size) for size in args.split.split(",")]
    else:
        sizes = [args.layers // stages + (stage < args.layers % stages) for stage in range(stages)]
    if len(sizes) != stages or sum(sizes) != args.layers or min(sizes) < 1:
        raise SystemExit(f"--split {args.split}: {stages} sizes of at least 1 with the sum {args.layers} are needed")
    return [sum(sizes[:stage]) for stage in range(stages + 1)]


def cross_entropy(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class LocalTurnStage(PipelineStage):
    """A stage that greets no neighbour on its own rank: Gloo connects no rank to itself, and a V has its turn on one rank.

    The schedules themselves pass on what stays on a rank without a message; only the greeting at the start does not.
    """

    def _get_init_p2p_neighbors_ops(self):
        return [op for op in super()._get_init_p2p_neighbors_ops() if op.group_peer != self.group_rank]


def build(args, rank: int, world: int):
    """This rank's stages as modules, and the schedule over them."""
    count = 2 * world if args.schedule in PLACEMENT else world
    placement = generate_rank_to_stage_mapping(world, count, PLACEMENT.get(args.schedule, "loop"))
    bounds = stage_bounds(args, count)
    modules, stages = [], []
    for index in placement[rank]:
        module = Stage(args, bounds[index], bounds[index + 1])
        modules.append(module)
        shape = (args.micro_batch, args.seq)
        hidden = torch.empty(*shape, args.hidden, dtype=module.dtype, requires_grad=True)
        example = torch.zeros(shape, dtype=torch.long) if index == 0 else hidden
        output = torch.empty(*shape, args.vocab, dtype=module.dtype) if module.head is not None else hidden
        runnable = torch.compile(module) if args.compile else module
        stages.append(LocalTurnStage(runnable, index, count, torch.device("cpu"), (example,), (output,)))
    kind = schedules.get_schedule_class(args.schedule)
    return modules, kind(stages if len(stages) > 1 else stages[0], args.microbatches, loss_fn=cross_entropy)


def clip_global_norm(parameters, limit: float) -> None:
    """Clips by the norm over the gradients of all stages: one all-reduce of the sum of squares."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    square = torch.stack(torch._foreach_norm(gradients)).square().sum()
    dist.all_reduce(square)
    torch._foreach_mul_(gradients, torch.clamp(limit / (square.sqrt() + 1e-6), max=1.0))


def peak_bytes() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    modules, schedule = build(args, rank, world)
    parameters = [parameter for module in modules for parameter in module.parameters()]
    decayed = [parameter for parameter in parameters if parameter.dim() == 2]
    kept = [parameter for parameter in parameters if parameter.dim() != 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": kept, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=1e-4, betas=(0.9, 0.95), fused=True)

    batch = args.micro_batch * args.microbatches
    has_last = any(module.head is not None for module in modules)
    tokens_per_s, loss = [], float("nan")
    for step in range(args.warmup + args.steps):
        generator = torch.Generator().manual_seed(step)
        data = torch.randint(args.vocab, (batch, args.seq + 1), generator=generator)
        dist.barrier()
        start = time.perf_counter()
        losses = []
        inputs = (data[:, :-1].contiguous(),) if rank == 0 else ()
        targets = {"target": data[:, 1:], "losses": losses} if has_last else {}
        schedule.step(*inputs, **targets, return_outputs=False)
        clip_global_norm(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        if step >= args.warmup:
            tokens_per_s.append(batch * args.seq / (time.perf_counter() - start))
        if has_last:
            loss = torch.stack(losses).mean().item()

    reports = [None] * world
    dist.all_gather_object(reports, {"peak_bytes": peak_bytes(), "loss": loss if has_last else None})
    if rank == 0:
        result = {
            "schedule": args.schedule,
            "dtype": args.dtype,
            "compile": args.compile,
            "split": args.split or "even",
            "tokens_per_s": statistics.median(tokens_per_s),
            "all_tokens_per_s": tokens_per_s,
            "peak_bytes": [report["peak_bytes"] for report in reports],
            "loss": next(report["loss"] for report in reports if report["loss"] is not None),
        }
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
