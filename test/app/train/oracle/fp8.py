"""Linear layers of a model of transformers in FP8, by train.fp8 = "rowwise" as its documentation says.

A row is rounded to E4M3 with the least power of two as scale that brings it to 448 or below. Forward pass and input gradient
multiply rounded operands; the gradient of a weight has none. q, k and v are one weight, as are gate and up.
"""

import torch
from torch.nn.functional import linear


def rounded(x):
    """The rows of x, as numbers of its own type."""
    scales = torch.exp2(torch.ceil(torch.log2(x.double().abs().amax(-1, keepdim=True) / 448)))
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))
    numbers = (x.double() / scales).float().clamp(-448, 448).to(torch.float8_e4m3fn)
    return (numbers.double() * scales).to(x.dtype)


class Fp8Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return linear(rounded(x), rounded(weight))

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dx = linear(rounded(dy), rounded(weight.t().contiguous()))
        return dx, dy.flatten(0, -2).t() @ x.flatten(0, -2)


def stack(layers):
    """The layers have one input, and are called in this order: the first call multiplies by the weights of all."""
    waiting = []

    def forward(x):
        if not waiting:
            weight = torch.cat([layer.weight for layer in layers])
            waiting.extend(Fp8Linear.apply(x, weight).split([layer.out_features for layer in layers], -1))
        return waiting.pop(0)
    for layer in layers:
        layer.forward = forward


def multiply_in_fp8(model):
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        stack([attention.q_proj, attention.k_proj, attention.v_proj])
        stack([attention.o_proj])
        stack([mlp.gate_proj, mlp.up_proj])
        stack([mlp.down_proj])
    return model
