"""A job on two ranks by torch.distributed: fully_shard, DTensor, pipelining, and exchanges of keys, values and tokens.

Each layout is a function that trains on one rank and returns what it found (`Found`). Ranks are forked processes over gloo.
"""

import dataclasses
import functools
import multiprocessing
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.distributed.nn.functional as differentiable
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import AttentionInterface
from transformers.models.llama.modeling_llama import eager_attention_forward

from oracle.job import Data, Result, Rows
from oracle.reference import add_gradients, build, optimizer_of, run_model, saved, sum_of_losses
from bounds import refuse_near_ties
from transformers_models import ClosestTie

RANKS = 2
NEAR_TIE = 77  # exit code of a rank that may choose other experts in float32


@dataclasses.dataclass
class Found:
    loss: list
    norm: list
    weights: dict  # this rank's; only its own experts


def on_two_ranks(test, layout, job, folder):
    """Runs the job by `layout`, a function below; returns both ranks' results as one Result."""
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=run_rank, args=(layout, job, folder, rank)) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(240)
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        if process.is_alive():
            process.kill()
    if NEAR_TIE in codes:
        refuse_near_ties(test, 0, 3e-5)
    if codes != [0] * RANKS:
        raise AssertionError(f"{layout.__name__}: torch.distributed ended with {codes}")
    found = [torch.load(folder / f"rank_{rank}.pt", weights_only=False) for rank in range(RANKS)]
    return Result(found[0].loss, found[0].norm, [job.lr * job.lr_at(step) for step in range(job.steps)], {},
                  whole_weights(job, [rank.weights for rank in found]))


def run_rank(layout, job, folder, rank):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    model = build(job.arch).double()
    tie = ClosestTie(model)
    torch.save(layout(job, model, Data(job), rank), folder / f"rank_{rank}.pt")
    dist.destroy_process_group()
    if tie.distance <= 3e-5:
        sys.exit(NEAR_TIE)


def whole_weights(job, ranks):
    """Joins two ranks' weights in the form of a Hugging Face directory."""
    model = build(job.arch).double()
    weights = {}
    for name, shape in ((name, parameter.shape) for name, parameter in model.named_parameters()):
        held = [rank[name] for rank in ranks if name in rank]
        if held[0].shape != shape:
            held = [torch.cat(held)]
        if not all(torch.equal(held[0], other) for other in held):
            raise AssertionError(f"the ranks of torch.distributed differ in {name}")
        weights[name] = held[0]
    model.load_state_dict(weights)
    return saved(model)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def summed(number):
    total = torch.tensor(number, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()


def train(job, data, parameters, take_gradients, norm_of):
    """take_gradients(step, targets) writes gradients into the parameters and returns this rank's sum of losses.
    norm_of(gradients) is their norm over all ranks."""
    optimizer, schedule = optimizer_of(job, parameters.items())
    found = Found([], [], {})
    for step in range(job.steps):
        optimizer.zero_grad()
        targets = data.valid(step)
        found.loss.append(summed(take_gradients(step, targets)) / targets)
        norm = norm_of({name: parameter.grad for name, parameter in parameters.items()})
        torch.nn.utils.clip_grads_with_norm_(parameters.values(), job.clip, norm, foreach=False)
        found.norm.append(norm.item())
        optimizer.step()
        schedule.step()
    found.weights = {name: whole(parameter.detach()).clone() for name, parameter in parameters.items()}
    return found


def norm_of_whole(gradients):
    """The norm if every rank can have each whole gradient."""
    return torch.nn.utils.get_total_norm([whole(gradient) for gradient in gradients.values()], foreach=False)


def norm_of_parts(gradients):
    """The norm if each gradient is on one rank only."""
    squares = sum(gradient.square().sum().item() for gradient in gradients.values())
    return torch.tensor(summed(squares) ** 0.5, dtype=torch.float64)


def sum_over_ranks(parameters):
    for parameter in parameters:
        dist.all_reduce(parameter.grad)


def data_parallel(job, model, data, rank):
    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)

    def take_gradients(step, targets):  # fully_shard averages gradients over its ranks
        return sum(add_gradients(job, model, rows, targets / RANKS) for rows in data.step(step, rank))

    return train(job, data, dict(model.named_parameters()), take_gradients, norm_of_whole)


def tensor_parallel(job, model, data, rank):
    attention, mlp = "model.layers.*.self_attn.", "model.layers.*.mlp."
    plan = {attention + name: ColwiseParallel() for name in ("q_proj", "k_proj", "v_proj")}
    plan.update({mlp + name: ColwiseParallel() for name in ("gate_proj", "up_proj")})
    plan.update({name: RowwiseParallel() for name in (attention + "o_proj", mlp + "down_proj")})
    plan["lm_head"] = ColwiseParallel(output_layouts=Replicate())
    parallelize_module(model, init_device_mesh("cpu", (RANKS,)), plan)

    def take_gradients(step, targets):
        nats = sum(add_gradients(job, model, rows, targets) for rows in data.step(step))
        return nats if rank == 0 else 0.0  # both ranks have the whole loss

    return train(job, data, dict(model.named_parameters()), take_gradients, norm_of_whole)


def with_all_keys(module, query, key, value, attention_mask, scaling, **options):
    """Attention of a rank's own tokens to the tokens of all ranks."""
    key, value = (torch.cat(differentiable.all_gather(part), dim=2) for part in (key, value))
    return eager_attention_forward(module, query, key, value, attention_mask, scaling, **options)


def context_parallel(job, model, data, rank):
    AttentionInterface.register("with_all_keys", with_all_keys)
    model.set_attn_implementation("with_all_keys")
    own = slice(rank * job.seq_len // RANKS, (rank + 1) * job.seq_len // RANKS)

    def take_gradients(step, targets):
        nats = 0.0
        for rows in data.step(step):
            part = Rows(rows.tokens[:, own], rows.labels[:, own], rows.positions[:, own], rows.attention[:, :, own])
            nats += add_gradients(job, model, part, targets)
        sum_over_ranks(model.parameters())
        return nats

    return train(job, data, dict(model.named_parameters()), take_gradients, norm_of_whole)


class Stage(torch.nn.Module):
    def __init__(self, model, rank):
        super().__init__()
        self.decoder, self.first = model.model, rank == 0
        cut = len(self.decoder.layers) - 1
        self.decoder.layers = self.decoder.layers[:cut] if self.first else self.decoder.layers[cut:]
        if self.first:
            self.decoder.norm, self.head = torch.nn.Identity(), torch.nn.Identity()
        else:
            self.decoder.embed_tokens, self.head = None, model.lm_head

    def forward(self, x):
        given = {"input_ids": x} if self.first else {"inputs_embeds": x}
        return self.head(self.decoder(**given, use_cache=False).last_hidden_state)


def pipeline_parallel(job, model, data, rank):
    names = {parameter: name for name, parameter in model.named_parameters()}
    stage = Stage(model, rank)
    runner = PipelineStage(stage, rank, RANKS, torch.device("cpu"))
    targets_of_step = []
    schedule = Schedule1F1B(runner, job.microbatches, scale_grads=False,
                            loss_fn=lambda logits, labels: sum_of_losses(logits, labels) / targets_of_step[-1])

    def take_gradients(step, targets):
        targets_of_step.append(targets)
        microbatches = data.step(step)
        if rank == 0:
            schedule.step(torch.cat([rows.tokens for rows in microbatches]))
            return 0.0
        losses = []
        schedule.step(target=torch.cat([rows.labels for rows in microbatches]), losses=losses)
        return sum(loss.item() for loss in losses) * targets

    parameters = {names[parameter]: parameter for parameter in stage.parameters()}
    return train(job, data, parameters, take_gradients, norm_of_parts)


class SharedExperts(torch.nn.Module):
    """Half of a layer's experts on each rank; tokens travel to their chosen experts and back."""

    def __init__(self, experts, rank):
        super().__init__()
        self.own = experts.num_experts // RANKS
        self.first = rank * self.own
        own = slice(self.first, self.first + self.own)
        self.gate_up_proj = torch.nn.Parameter(experts.gate_up_proj[own].detach().clone())
        self.down_proj = torch.nn.Parameter(experts.down_proj[own].detach().clone())

    def compute(self, rows, experts):
        out = torch.zeros_like(rows)
        for expert in range(self.own):
            mine = (experts == self.first + expert).nonzero()[:, 0]
            gate, up = (rows[mine] @ self.gate_up_proj[expert].T).chunk(2, dim=-1)
            out = out.index_add(0, mine, (torch.nn.functional.silu(gate) * up) @ self.down_proj[expert].T)
        return out

    def forward(self, hidden, chosen, weights):
        order = chosen.flatten().argsort(stable=True)  # by expert, so by rank
        experts = chosen.flatten()[order]
        sent = (experts // self.own).bincount(minlength=RANKS)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        exchange = functools.partial(collectives.all_to_all_single_autograd, group=dist.group.WORLD)
        there, back = received.tolist(), sent.tolist()
        rows = exchange(hidden[order // chosen.shape[1]], there, back)
        whose = collectives.all_to_all_single(experts, there, back, dist.group.WORLD)
        results = exchange(self.compute(rows, whose), back, there)
        scaled = results * weights.flatten()[order][:, None]
        return torch.zeros_like(hidden).index_add(0, order // chosen.shape[1], scaled)


def balance_over_ranks(model, router_logits, coefficient):
    """This rank's part of balance_loss over the tokens of both ranks."""
    total = 0
    for layer in router_logits:
        probabilities = layer.softmax(-1)
        chosen = probabilities.topk(model.config.num_experts_per_tok, dim=-1).indices
        counts = torch.nn.functional.one_hot(chosen, layer.shape[-1]).sum((0, 1)).double()
        dist.all_reduce(counts)
        tokens = RANKS * layer.shape[0]
        total = total + coefficient * layer.shape[-1] * (counts / tokens * probabilities.sum(0) / tokens).sum()
    return total


def expert_parallel(job, model, data, rank):
    for layer in model.model.layers:
        if hasattr(layer.mlp, "experts"):
            layer.mlp.experts = SharedExperts(layer.mlp.experts, rank)
    parameters = dict(model.named_parameters())
    shared = {name for name in parameters if ".mlp.experts." in name}

    def take_gradients(step, targets):
        nats = 0.0
        for rows in data.step(step, rank):
            output = run_model(model, rows, output_router_logits=True)
            loss = sum_of_losses(output.logits, rows.labels)
            both = RANKS * rows.valid  # without documents all ranks have equally many valid tokens
            z = sum(layer.logsumexp(-1).square().mean() for layer in output.router_logits) / RANKS
            extra = both * (balance_over_ranks(model, output.router_logits, job.balance) + job.z * z)
            ((loss + extra) / targets).backward()
            nats += loss.item()
        sum_over_ranks(parameter for name, parameter in parameters.items() if name not in shared)
        return nats

    def norm_of(gradients):
        parts = {name: gradient for name, gradient in gradients.items() if name in shared}
        alike = [gradient for name, gradient in gradients.items() if name not in shared]
        return torch.hypot(norm_of_parts(parts), torch.nn.utils.get_total_norm(alike, foreach=False))

    return train(job, data, parameters, take_gradients, norm_of)
