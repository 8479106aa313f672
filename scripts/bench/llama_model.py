"""The Llama of the benchmark job (RMSNorm, rotary positions, SwiGLU, causal attention, untied head), whole or in stages, from
PyTorch's own fused operations. All baselines run it; weights belong to the layer, so that every layout trains the same model.
"""

import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

# RMSNorm of bf16 activations with fp32 weights. Casting the weight first was not faster on the CPU in a measurement.
warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")


def add_size_arguments(parser) -> None:
    """The sizes of llama_bench.toml's model."""
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--ffn", type=int, default=1408)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--seq", type=int, default=512)


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.head_dim = hidden // heads
        self.q = nn.Linear(hidden, hidden, bias=False)
        self.k = nn.Linear(hidden, hidden, bias=False)
        self.v = nn.Linear(hidden, hidden, bias=False)
        self.o = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x, cos, sin):
        # Under tensor parallelism these are this rank's heads, and seq is longer than x's slice of the sequence.
        q, k, v = (p(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for p in (self.q, self.k, self.v))
        out = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        return self.o(out.transpose(1, 2).flatten(2))


def rotate(x, cos, sin):
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class FeedForward(nn.Module):
    def __init__(self, hidden: int, ffn: int):
        super().__init__()
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.input_norm = nn.RMSNorm(args.hidden, eps=1e-6)
        self.attention = Attention(args.hidden, args.heads)
        self.mlp_norm = nn.RMSNorm(args.hidden, eps=1e-6)
        self.mlp = FeedForward(args.hidden, args.ffn)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.input_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Stage(nn.Module):
    """Layers [first, last) of the model, with the embedding on the first stage, the norm and head on the last."""

    def __init__(self, args, first: int, last: int):
        super().__init__()
        self.sizes, self.first = args, first
        self.embedding = nn.Embedding(args.vocab, args.hidden) if first == 0 else None
        self.blocks = nn.ModuleList(Block(args) for _ in range(first, last))
        is_last = last == args.layers
        self.norm = nn.RMSNorm(args.hidden, eps=1e-6) if is_last else None
        self.head = nn.Linear(args.hidden, args.vocab, bias=False) if is_last else None
        self.dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
        self.autocast = self.dtype == torch.bfloat16
        self.register_buffer("cos", None, persistent=False)
        self.register_buffer("sin", None, persistent=False)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
            if self.embedding is not None:
                x = self.embedding(x).to(self.dtype)  # activations travel in the compute type
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            return x if self.head is None else self.head(self.norm(x))

    @torch.no_grad()
    def initialize(self) -> None:
        args, dim = self.sizes, self.sizes.hidden // self.sizes.heads
        angle = torch.outer(torch.arange(args.seq).float(), 10000 ** (-torch.arange(0, dim, 2).float() / dim))
        self.cos, self.sin = (torch.cat((f(angle), f(angle)), -1).to(self.dtype) for f in (torch.cos, torch.sin))
        initialize(self.embedding, seed=0)
        for layer, block in enumerate(self.blocks, start=self.first):
            initialize(block, seed=layer + 1)
        initialize(self.head, seed=args.layers + 1)
        initialize(self.norm, seed=0)


def initialize(module: nn.Module | None, seed: int) -> None:
    """Random matrices and norms of 1, from the module's own seed; a rank keeps its slice of each."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters() if module else ():
        values = torch.ones(parameter.shape)
        if parameter.dim() == 2:
            values.normal_(std=0.02, generator=generator)
        if isinstance(parameter, DTensor):
            share = distribute_tensor(values, parameter.device_mesh, parameter.placements, src_data_rank=None)
            parameter.to_local().copy_(share.to_local())
        else:
            parameter.copy_(values)


def build_stage(args, first: int, last: int, distribute=lambda stage: None) -> Stage:
    """A stage with its weights. distribute(stage) may shard its parameters before they are allocated."""
    with torch.device("meta"):
        stage = Stage(args, first, last)
    distribute(stage)
    stage.to_empty(device="cpu")
    stage.initialize()
    return stage
