"""What tests against models of transformers share."""

import math

import torch


def shake_norms(model):
    """Norms and biases start as ones and zeros, which would hide mistakes."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)


def balance_loss(model, logits, coefficient):
    """coefficient * experts * sum of f_e P_e of each layer (Switch Transformer, eq. 4), f summed over choices."""
    total = 0
    for layer in logits:
        probabilities = layer.softmax(-1)
        chosen = probabilities.topk(model.config.num_experts_per_tok, dim=-1).indices
        share = torch.nn.functional.one_hot(chosen, layer.shape[-1]).sum(1).double().mean(0)
        total = total + coefficient * layer.shape[-1] * (share * probabilities.mean(0)).sum()
    return total


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
