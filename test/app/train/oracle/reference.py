"""A job by transformers and torch.optim, to compare pptrain's run with."""

import copy
import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.utils.logging import disable_progress_bar

from oracle.job import IGNORED, VOCAB, Result
from bounds import seed
from transformers_models import balance_loss, shake_norms

disable_progress_bar()

# Sizes without common factors, so that a size used in another's place is found. Two divides the sharded ones.
SIZES = {
    "hidden_size": 48, "intermediate_size": 52, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 12, "vocab_size": VOCAB, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "initializer_range": 0.1, "tie_word_embeddings": False, "bos_token_id": None,
    "eos_token_id": None,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 28, "norm_topk_prob": True,
           "mlp_only_layers": [1]}
CLASSES = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {}),
    "qwen3_moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig, EXPERTS),
}


def build(arch, sizes=SIZES):
    """The model, in float32."""
    torch.manual_seed(seed(2))
    model_class, config_class, changes = CLASSES[arch]
    config = config_class(**sizes, **changes, attn_implementation="eager")
    config._experts_implementation = "eager"  # the others do not support float64
    model = model_class(config)
    shake_norms(model)
    return model


def saved(model):
    """The model's weights with the names and the division of a Hugging Face directory."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(os.path.join(folder, "model.safetensors"))


def optimizer_of(job, parameters):
    """AdamW over (name, parameter) pairs, and the schedule of its rate."""
    groups = []
    for name, parameter in parameters:
        lr_scale, weight_decay = job.group_of(name)
        groups.append({"params": [parameter], "lr": job.lr * lr_scale, "weight_decay": weight_decay})
    optimizer = torch.optim.AdamW(groups, betas=job.betas, eps=job.eps, foreach=False)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, job.lr_at)


def sum_of_losses(logits, labels):
    """In nats, over all labels that are not ignored."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.nn.functional.cross_entropy(wide.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")


def run_model(model, rows, **options):
    if rows.attention is not None:
        options.update(position_ids=rows.positions, attention_mask=rows.attention.to(model.dtype))
    return model(input_ids=rows.tokens, use_cache=False, **options)


def router_losses(job, model, router_logits):
    """The sparse layers' losses, means over the microbatch's tokens."""
    z = sum(layer.logsumexp(-1).square().mean() for layer in router_logits)
    return balance_loss(model, router_logits, job.balance) + job.z * z


def add_gradients(job, model, rows, targets):
    """Adds gradients of a microbatch's part in the mean loss over `targets` valid tokens; returns its sum of losses."""
    output = run_model(model, rows, **({"output_router_logits": True} if job.balance else {}))
    nats = sum_of_losses(output.logits, rows.labels)
    extra = rows.valid * router_losses(job, model, output.router_logits) if job.balance else 0
    if job.z_loss:  # a part of the loss that is told
        nats = nats + job.z_loss * output.logits[rows.labels != IGNORED].logsumexp(-1).square().sum()
    ((nats + extra) / targets).backward()
    return nats.item()


class PlainBf16:
    """The gradients of a model in bf16. Its weights are `master`'s float32 weights, rounded; `change` changes its layers."""

    def __init__(self, master, change=lambda model: model):
        self.master = master
        self.model = change(copy.deepcopy(master).bfloat16())

    def round(self):
        with torch.no_grad():
            for mine, parameter in zip(self.model.parameters(), self.master.parameters()):
                mine.copy_(parameter)

    def add_gradients(self, job, rows, targets):
        self.model.zero_grad()
        nats = add_gradients(job, self.model, rows, targets)
        for mine, parameter in zip(self.model.parameters(), self.master.parameters()):
            parameter.grad = mine.grad.float() if parameter.grad is None else parameter.grad + mine.grad
        return nats


def validate(model, data):
    """The mean loss and its number of valid tokens by source, and for all ("")."""
    found, all_nats, all_targets = {}, 0.0, 0
    for name, batches in data.validations():
        nats, targets = 0.0, 0
        for rows in batches:
            with torch.inference_mode():
                nats += sum_of_losses(run_model(model, rows).logits, rows.labels).item()
            targets += rows.valid
        found[name] = (nats / targets, targets)
        all_nats, all_targets = all_nats + nats, all_targets + targets
    return {"": (all_nats / all_targets, all_targets), **found}


def train(job, model, data, plain_bf16=None, saved=saved):
    """Trains `model` in its own type; a PlainBf16 of it runs the passes instead. `saved` gives the weights."""
    optimizer, schedule = optimizer_of(job, model.named_parameters())
    copied = plain_bf16
    result = Result([], [], [], {}, {})
    for step in range(job.steps):
        targets = data.valid(step)
        optimizer.zero_grad()
        nats = [copied.add_gradients(job, rows, targets) if copied else add_gradients(job, model, rows, targets)
                for rows in data.step(step)]
        result.loss.append(sum(nats) / targets)
        result.norm.append(torch.nn.utils.clip_grad_norm_(model.parameters(), job.clip).item())
        result.lr.append(job.lr * job.lr_at(step))
        optimizer.step()
        schedule.step()
        if copied:
            copied.round()
        if step + 1 == job.steps or job.eval_interval and (step + 1) % job.eval_interval == 0:
            result.validation[step + 1] = validate(copied.model if copied else model, data)
    result.weights = saved(model)
    return result
