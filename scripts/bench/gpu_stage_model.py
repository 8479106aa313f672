"""A stage of Llama 3 in PyTorch as a good user would write it for one GPU: bf16 weights, grouped-query attention by PyTorch's
scaled_dot_product_attention; each block, and the head with its loss, is compiled separately. It shares code with llama_model.py.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from llama_model import FeedForward, rotate
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

BACK_ENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
}


@dataclass
class Sizes:
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    sequences: tuple[int, ...]


LLAMA_8B = Sizes(4096, 14336, 32, 8, 128, 128256, (4096, 8192))
SMALL = Sizes(128, 384, 4, 2, 32, 512, (64, 128))


@dataclass
class Place:
    """One of eight stages, as in gpu_bench (test/gpu/bench/stages.cpp)."""

    name: str
    blocks: int
    in_flight: int  # microbatches between forward and backward under 1F1B


PLACES = (Place("first", 4, 8), Place("middle", 4, 4), Place("last", 2, 1))


def takes_groups(sizes: Sizes, back_end: SDPBackend, device: str) -> bool:
    """Whether the back end accepts fewer key-value heads than heads."""
    q, k = (torch.randn(1, heads, 64, sizes.head_dim, device=device, dtype=torch.bfloat16) for heads in (sizes.heads, sizes.kv_heads))
    try:
        with sdpa_kernel(back_end):
            F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
        return True
    except RuntimeError:
        return False


class Attention(nn.Module):
    def __init__(self, sizes: Sizes, back_end: str, groups: bool):
        super().__init__()
        self.head_dim, self.back_end = sizes.head_dim, BACK_ENDS[back_end]
        self.copies = 1 if groups else sizes.heads // sizes.kv_heads
        self.q = nn.Linear(sizes.hidden, sizes.heads * sizes.head_dim, bias=False)
        self.k = nn.Linear(sizes.hidden, sizes.kv_heads * sizes.head_dim, bias=False)
        self.v = nn.Linear(sizes.hidden, sizes.kv_heads * sizes.head_dim, bias=False)
        self.o = nn.Linear(sizes.heads * sizes.head_dim, sizes.hidden, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = (p(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = (rotate(t.float(), cos, sin).to(x.dtype) for t in (q, k))
        if self.copies > 1:
            k, v = (t.repeat_interleave(self.copies, dim=1) for t in (k, v))
        with sdpa_kernel(self.back_end):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(out.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, sizes: Sizes, back_end: str, groups: bool):
        super().__init__()
        self.input_norm = nn.RMSNorm(sizes.hidden, eps=1e-5)
        self.attention = Attention(sizes, back_end, groups)
        self.mlp_norm = nn.RMSNorm(sizes.hidden, eps=1e-5)
        self.mlp = FeedForward(sizes.hidden, sizes.ffn)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.input_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Head(nn.Module):
    """The final norm, the projection and the cross entropy, summed over tokens."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.norm = nn.RMSNorm(sizes.hidden, eps=1e-5)
        self.output = nn.Linear(sizes.hidden, sizes.vocab, bias=False)

    def forward(self, x, labels):
        return F.cross_entropy(self.output(self.norm(x)).flatten(0, 1).float(), labels.flatten(), reduction="sum")


class Stage(nn.Module):
    def __init__(self, sizes: Sizes, place: Place, back_end: str, groups: bool, compiled: bool):
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocab, sizes.hidden) if place.name == "first" else None
        self.blocks = nn.ModuleList(Block(sizes, back_end, groups) for _ in range(place.blocks))
        self.head = Head(sizes) if place.name == "last" else None
        dim = sizes.head_dim
        angle = torch.outer(torch.arange(max(sizes.sequences)).float(), 500000 ** (-torch.arange(0, dim, 2).float() / dim))
        self.cos, self.sin = (torch.cat((f(angle), f(angle)), -1) for f in (torch.cos, torch.sin))
        if compiled:
            for module in [*self.blocks, *([self.head] if self.head else [])]:
                module.compile(dynamic=False)

    def forward(self, x, labels):
        """The output of the last block, or on the last stage the loss. x: tokens on the first stage."""
        cos, sin = (table[: x.shape[1]] for table in (self.cos, self.sin))
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks:
            x = block(x, cos, sin)
        return x if self.head is None else self.head(x, labels)


def build_stage(sizes: Sizes, place: Place, back_end: str, compiled: bool, device: str) -> Stage:
    """The stage with random weights made on the device. Matrices and their gradients are in bfloat16."""
    groups = takes_groups(sizes, BACK_ENDS[back_end], device)
    with torch.device(device):
        stage = Stage(sizes, place, back_end, groups, compiled).to(torch.bfloat16)
    for parameter in stage.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02)
    return stage


def flops_per_token(sizes: Sizes, place: Place, sequence: int) -> float:
    """Useful operations, as models/flops.h counts them: causal attention once, no recompute, no input embedding."""
    inner = sizes.heads * sizes.head_dim
    block = sizes.hidden * (2 * inner + 2 * sizes.kv_heads * sizes.head_dim + 3 * sizes.ffn)
    products = place.blocks * block + (sizes.vocab * sizes.hidden if place.name == "last" else 0)
    return 6.0 * products + 6.0 * place.blocks * sequence * inner
