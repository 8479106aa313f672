"""What tests against models of transformers share."""

import math

import torch
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func


def shake_norms(model):
    """Norms and biases start as ones and zeros, which would hide mistakes."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)


def balance_loss(model, logits, coefficient, attention_mask=None):
    """Of each layer by itself: transformers' own takes the means over the tokens of all layers together."""
    return coefficient * sum(
        load_balancing_loss_func((layer,), layer.shape[-1], model.config.num_experts_per_tok, attention_mask)
        for layer in logits)


class ClosestTie:
    """The least distance, in nats, of a token's last chosen expert from the next one, over all that a model routes."""

    def __init__(self, model):
        self.distance = math.inf
        for name, module in model.named_modules():
            if name.endswith("mlp.gate"):
                module.register_forward_hook(lambda gate, _, output: self.look(gate.top_k, output[0]))

    def look(self, chosen, logits):
        order = logits.detach().sort(-1, descending=True).values
        self.distance = min(self.distance, (order[:, chosen - 1] - order[:, chosen]).min().item())
