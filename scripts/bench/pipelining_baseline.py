"""The benchmark job of compare.py on torch.distributed.pipelining, PyTorch's own pipeline parallelism.

    torchrun --nproc-per-node 2 scripts/bench/pipelining_baseline.py --schedule 1F1B --dtype bf16

The model is llama_model.py's, the step torch_steps.py's: the schedule over all microbatches, one global gradient norm over
all stages, clipping, AdamW. Rank 0 prints one JSON object: the tokens/s of the measured steps and the peak resident memory of
each rank.
"""

import argparse

import torch
import torch.distributed as dist
from llama_model import add_size_arguments, build_stage
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining._utils import generate_rank_to_stage_mapping
from torch_steps import add_step_arguments, adamw, cross_entropy, report, start, timed_steps

# Schedules with two stages a rank: the second stages follow the order of the ranks (loop), or the reverse order (v).
PLACEMENT = {
    "LoopedBFS": "loop",
    "Interleaved1F1B": "loop",
    "InterleavedZeroBubble": "loop",
    "ZBVZeroBubble": "v",
    "DualPipeV": "v",
}
SCHEDULES = ("GPipe", "1F1B", *PLACEMENT)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedule", choices=SCHEDULES, default="1F1B")
    parser.add_argument("--compile", action="store_true", help="torch.compile each stage")
    parser.add_argument("--split", help="layers of each stage, such as 5,3; even without it")
    parser.add_argument("--microbatches", type=int, default=8)
    add_size_arguments(parser)
    add_step_arguments(parser)
    return parser.parse_args()


def stage_bounds(args, stages: int) -> list[int]:
    if args.split:
        sizes = [int(size) for size in args.split.split(",")]
    else:
        sizes = [args.layers // stages + (stage < args.layers % stages) for stage in range(stages)]
    if len(sizes) != stages or sum(sizes) != args.layers or min(sizes) < 1:
        raise SystemExit(f"--split {args.split}: {stages} sizes of at least 1 with the sum {args.layers} are needed")
    return [sum(sizes[:stage]) for stage in range(stages + 1)]


class LocalTurnStage(PipelineStage):
    """A stage that greets no neighbour on its own rank: Gloo cannot connect a rank to itself, and a V turns on one rank.

    The schedules themselves send no message within a rank; only the greeting at the start does.
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
        module = build_stage(args, bounds[index], bounds[index + 1])
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


def main() -> None:
    args = parse_arguments()
    rank, world = start()
    modules, schedule = build(args, rank, world)
    parameters = [parameter for module in modules for parameter in module.parameters()]
    optimizer = adamw(parameters)
    batch = args.micro_batch * args.microbatches
    has_last = any(module.head is not None for module in modules)

    def draw(step: int):
        generator = torch.Generator().manual_seed(step)
        return torch.randint(args.vocab, (batch, args.seq + 1), generator=generator)

    def run(data) -> float | None:
        losses = []
        inputs = (data[:, :-1].contiguous(),) if rank == 0 else ()
        targets = {"target": data[:, 1:], "losses": losses} if has_last else {}
        schedule.step(*inputs, **targets, return_outputs=False)
        clip_global_norm(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean().item() if has_last else None

    figures, losses = timed_steps(args, batch * args.seq, draw, run)
    settings = {"schedule": args.schedule, "dtype": args.dtype, "compile": args.compile, "split": args.split or "even"}
    report(settings | figures, losses[-1])


if __name__ == "__main__":
    main()
