"""The benchmark job with sharded data parallelism on PyTorch's FSDP2 (fully_shard).

    torchrun --nproc-per-node 2 scripts/bench/fsdp_baseline.py --tokens TOKENS.bin [--reshard] [--reduce microbatch]

Embedding, each block, and norm with head are groups of their own. Masters, gradients and AdamW's moments are fp32 and sharded
over the ranks; the passes use gathered bf16 copies, gradients are summed in fp32. Rank 0 prints one JSON object: tokens/s of
the measured steps, loss and gradient norm of every step, and the peak resident memory of each rank.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from llama_model import Stage, add_size_arguments, build_stage
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.utils import clip_grad_norm_
from torch_steps import add_step_arguments, adamw, cross_entropy, read_samples, report, start, timed_steps


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=Path, required=True, help="file of uint16 ids")
    parser.add_argument("--reshard", action="store_true", help="free a group's weights after each forward pass")
    parser.add_argument("--reduce", choices=("step", "microbatch"), default="step", help="when gradients are summed")
    parser.add_argument("--compile", action="store_true", help="torch.compile each block, and the loss")
    parser.add_argument("--async-gather", action="store_true", help="gather weights in the background")
    parser.add_argument("--microbatches", type=int, default=4, help="of each rank")
    add_size_arguments(parser)
    add_step_arguments(parser)
    return parser.parse_args()


def distribute(stage: Stage, args) -> None:
    stage.autocast = False  # FSDP2's own policy casts weights once per gather, not once per use
    if args.compile:
        for block in stage.blocks:
            block.compile(fullgraph=True)
    policy = MixedPrecisionPolicy(param_dtype=stage.dtype, reduce_dtype=torch.float32)
    groups = [stage.embedding, *stage.blocks, [stage.norm, stage.head], stage]
    for group in groups:
        fully_shard(group, mp_policy=policy, reshard_after_forward=args.reshard)
    if args.async_gather:
        stage._set_unshard_async_op(True)
        for group, following in zip(stage.blocks, stage.blocks[1:]):
            group.set_modules_to_forward_prefetch([following])


def main() -> None:
    args = parse_arguments()
    rank, world = start()
    stage = build_stage(args, 0, args.layers, lambda stage: distribute(stage, args))
    optimizer = adamw(list(stage.parameters()))
    loss_function = torch.compile(cross_entropy) if args.compile else cross_entropy

    def samples(step: int) -> list:
        """This rank's microbatches: each has this rank's rows of the next world * micro_batch samples."""
        first, size = step * args.microbatches * world, args.micro_batch
        of = [(first + j * world + rank) * size for j in range(args.microbatches)]
        return [read_samples(args.tokens, sample, size, args.seq) for sample in of]

    def run(microbatches) -> tuple[float, float]:
        total = torch.zeros(())
        for index, data in enumerate(microbatches):
            last = index + 1 == len(microbatches)
            stage.set_requires_gradient_sync(last or args.reduce == "microbatch")
            stage.set_reshard_after_backward(last or args.reshard)
            loss = loss_function(stage(data[:, :-1]), data[:, 1:]) / len(microbatches)
            loss.backward()
            total += loss.detach()
        norm = clip_grad_norm_(stage.parameters(), 1.0).full_tensor()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        return total.item() / world, norm.item()

    figures, outcomes = timed_steps(args, world * args.microbatches * args.micro_batch * args.seq, samples, run)
    figures["losses"], figures["norms"] = (list(column) for column in zip(*outcomes))
    report(figures, figures["losses"][-1])


if __name__ == "__main__":
    main()
