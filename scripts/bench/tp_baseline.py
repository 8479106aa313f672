"""The benchmark job with PyTorch's tensor parallelism (torch.distributed.tensor.parallel) on Gloo.

    torchrun --nproc-per-node 2 scripts/bench/tp_baseline.py --tokens TOKENS.bin [--style sequence | all-reduce]

Heads, the MLP's inner dimension and the vocabulary are sharded over the ranks; no rank has full logits (loss_parallel). Style
sequence keeps norms and the residual stream on each rank's slice of the tokens (all-gather and reduce-scatter around attention
and MLP); all-reduce keeps them whole on every rank. --casts chooses how bf16 weights are made of the fp32 masters: by autocast,
at each use, or by FSDP2 over one rank, once a step. Rank 0 prints the same as fsdp_baseline.py.
"""

import argparse
from pathlib import Path

import torch
from llama_model import Stage, add_size_arguments, build_stage
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch_steps import add_step_arguments, adamw, cross_entropy, read_samples, report, start, timed_steps


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=Path, required=True, help="file of uint16 ids")
    parser.add_argument("--style", choices=("sequence", "all-reduce"), default="sequence")
    parser.add_argument("--casts", choices=("autocast", "fsdp"), default="autocast")
    parser.add_argument("--compile", action="store_true", help="torch.compile each block")
    parser.add_argument("--microbatches", type=int, default=8)
    add_size_arguments(parser)
    add_step_arguments(parser)
    return parser.parse_args()


def sequence_plans() -> tuple[dict, dict]:
    """How the model and a block are sharded, with the tokens sharded over the ranks between the GEMMs."""
    share, every = Shard(1), Replicate()
    model = {
        "embedding": RowwiseParallel(input_layouts=every, output_layouts=share),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=share, output_layouts=Shard(-1), use_local_output=False),
    }
    block = {
        "input_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(share, None, None), desired_input_layouts=(every, None, None)),
        "attention.o": RowwiseParallel(output_layouts=share),
        "mlp_norm": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=(share,), desired_input_layouts=(every,)),
        "mlp.down": RowwiseParallel(output_layouts=share),
    }
    return model, block


def all_reduce_plans() -> tuple[dict, dict]:
    """How the model and a block are sharded, with all tokens on every rank between the GEMMs."""
    model = {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    every = Replicate()
    block = {  # one distributed input for several GEMMs: its gradient is summed over the ranks once
        "attention": PrepareModuleInput(input_layouts=(every, None, None), desired_input_layouts=(every, None, None)),
        "attention.o": RowwiseParallel(),
        "mlp": PrepareModuleInput(input_layouts=(every,), desired_input_layouts=(every,)),
        "mlp.down": RowwiseParallel(),
    }
    return model, block


def distribute(stage: Stage, args, world: int) -> None:
    mesh = init_device_mesh("cpu", (1, world), mesh_dim_names=("dp", "tp"))
    model, block = sequence_plans() if args.style == "sequence" else all_reduce_plans()
    block |= {f"attention.{name}": ColwiseParallel() for name in "qkv"}
    block |= {f"mlp.{name}": ColwiseParallel() for name in ("gate", "up")}
    parallelize_module(stage, mesh["tp"], model)
    for module in stage.blocks:
        parallelize_module(module, mesh["tp"], block)
        if args.compile:
            module.compile(fullgraph=True)
    if args.casts == "fsdp":
        stage.autocast = False
        policy = MixedPrecisionPolicy(param_dtype=stage.dtype, reduce_dtype=torch.float32)
        for group in [stage.embedding, *stage.blocks, [stage.norm, stage.head], stage]:
            fully_shard(group, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=False)


def whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def clip_global_norm(parameters, limit: float) -> torch.Tensor:
    """The norm over all gradients. PyTorch's functions take tensors of one mesh at a time: sharded ones, then the others."""
    of_mesh = {}
    for parameter in parameters:
        of_mesh.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    norms = [whole(get_total_norm([p.grad for p in group])) for group in of_mesh.values()]
    total = torch.stack(norms).square().sum().sqrt()
    for group in of_mesh.values():
        clip_grads_with_norm_(group, limit, total)
    return total


def main() -> None:
    args = parse_arguments()
    _, world = start()
    stage = build_stage(args, 0, args.layers, lambda stage: distribute(stage, args, world))
    optimizer = adamw(list(stage.parameters()))

    def samples(step: int) -> list:
        count = args.micro_batch
        return [
            read_samples(args.tokens, (step * args.microbatches + j) * count, count, args.seq)
            for j in range(args.microbatches)
        ]

    def run(microbatches) -> tuple[float, float]:
        total = 0.0
        for index, data in enumerate(microbatches):
            if args.casts == "fsdp":
                last = index + 1 == len(microbatches)
                stage.set_requires_gradient_sync(last)
                stage.set_reshard_after_backward(last)
            with loss_parallel():
                loss = cross_entropy(stage(data[:, :-1]), data[:, 1:]) / len(microbatches)
                loss.backward()
            total += whole(loss).item()
        norm = clip_global_norm(stage.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return total, norm.item()

    figures, outcomes = timed_steps(args, args.microbatches * args.micro_batch * args.seq, samples, run)
    figures["losses"], figures["norms"] = (list(column) for column in zip(*outcomes))
    report(figures, figures["losses"][-1])


if __name__ == "__main__":
    main()
