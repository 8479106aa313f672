"""A job in the forms that pptrain and a reference read, one run of the program, and its results."""

import dataclasses
import functools
import pathlib
import sys

import numpy
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "support"))
from bounds import seed  # noqa: E402
from pptrain import records, run, sets  # noqa: E402
from oracle.data_order import Mixture  # noqa: E402

VOCAB = 132
WEIGHTS = (2.5, 1)  # the sources' weights
VAL_FRACTION = 0.19  # of the first one; the second one has a file of its own
IGNORED = -100


@dataclasses.dataclass(frozen=True)
class Job:
    arch: str = "llama"
    dtype: str = "fp32"
    seed: int = 3
    steps: int = 14
    warmup: int = 3
    seq_len: int = 24
    micro_batch: int = 2
    microbatches: int = 3
    data_ranks: int = 1
    document_end: int = -1
    clip: float = 1.2
    lr: float = 1e-2
    min_lr_ratio: float = 0.2
    betas: tuple = (0.8, 0.97)
    eps: float = 1e-4
    weight_decay: float = 0.15
    eval_interval: int = 5
    eval_batches: int = 0
    balance: float = 0.0
    z: float = 0.0
    z_loss: float = 0.0  # of the vocabulary's logits
    more_microbatches: tuple = ()  # (first step, from 0; microbatches), ascending: train.grad_accum_schedule

    def lr_at(self, step):
        """The factor of lr after `step` steps: a linear rise, then half a period of a cosine."""
        step = min(step, self.steps - 1)
        if step < self.warmup:
            return (step + 1) / self.warmup
        peak, last = max(self.warmup - 1, 0), self.steps - 1
        half_period = (1 + numpy.cos(numpy.pi * (step - peak) / (last - peak))) / 2
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * half_period

    def group_of(self, name):
        """lr_scale and weight_decay of the parameter that transformers calls `name`, by optimizer.groups in toml()."""
        if "embed_tokens" in name:
            return 0.5, 0.0
        if "norm" in name:
            return 1.0, 0.05
        return (1.5 if ".layers.1." in name else 1.0), self.weight_decay

    def microbatches_at(self, step):
        return [self.microbatches, *(count for first, count in self.more_microbatches if first <= step)][-1]

    def rows_at(self, step):
        return self.data_ranks * self.microbatches_at(step) * self.micro_batch

    def toml(self, model):
        router = f"router_aux_loss_coef = {self.balance}\nrouter_z_loss_coef = {self.z}\n" if self.balance else ""
        documents = f"document_end = {self.document_end}\n" if self.document_end >= 0 else ""
        more = "".join(f"[[train.grad_accum_schedule]]\nfrom_step = {first + 1}\ngrad_accum_steps = {count}\n"
                       for first, count in self.more_microbatches)
        return f"""
[run]
dir = "run"
seed = {self.seed}
[model]
{model}
{router}[train]
steps = {self.steps}
seq_len = {self.seq_len}
micro_batch_size = {self.micro_batch}
grad_accum_steps = {self.microbatches}
dtype = "{self.dtype}"
grad_clip = {self.clip}
z_loss = {self.z_loss}
{more}[optimizer]
lr = {self.lr}
betas = [{self.betas[0]}, {self.betas[1]}]
eps = {self.eps}
weight_decay = {self.weight_decay}
[[optimizer.groups]]
match = "embedding"
lr_scale = 0.5
weight_decay = 0.0
[[optimizer.groups]]
match = "norm"
weight_decay = 0.05
[[optimizer.groups]]
match = "layers.1.*"
lr_scale = 1.5
[lr_schedule]
warmup_steps = {self.warmup}
min_lr_ratio = {self.min_lr_ratio}
[data]
{documents}[[data.sources]]
name = "web"
path = ["web_0.bin", "web_1.bin"]
format = "bin"
weight = {WEIGHTS[0]}
val_fraction = {VAL_FRACTION}
[[data.sources]]
name = "books"
path = "books.npy"
format = "npy"
weight = {WEIGHTS[1]}
val_path = "books_val.npy"
[eval]
interval = {self.eval_interval}
batches = {self.eval_batches}
[checkpoint]
interval = 0
[metrics]
peak_tflops = 1
"""


@functools.cache
def streams():
    """Tokens of both sources, for training and for validation. They follow Zipf's law, in each source's own order; some
    tokens depend on the token before."""
    draw = numpy.random.default_rng(seed(8))

    def tokens(count, order):
        chance = 1 / numpy.arange(1, VOCAB + 1)
        drawn = order[draw.choice(VOCAB, count, p=chance / chance.sum())]
        for i in range(1, count):
            if draw.random() < 0.3:
                drawn[i] = order[drawn[i - 1]]
        return drawn.tolist()

    web, books = draw.permutation(VOCAB), draw.permutation(VOCAB)
    stream, other, other_val = tokens(1210, web), tokens(250, books), tokens(301, books)
    held_out = int(VAL_FRACTION * len(stream))
    return {"web": (stream[:-held_out], stream[-held_out:]), "books": (other, other_val)}


def write_data(folder):
    web = numpy.array(streams()["web"][0] + streams()["web"][1], dtype=numpy.uint16)
    (folder / "web_0.bin").write_bytes(web[:700].tobytes())
    (folder / "web_1.bin").write_bytes(web[700:].tobytes())
    numpy.save(folder / "books.npy", numpy.array(streams()["books"][0], dtype=numpy.int32))
    numpy.save(folder / "books_val.npy", numpy.array(streams()["books"][1], dtype=numpy.int64))


@dataclasses.dataclass
class Rows:
    """A model's input, [rows, seq_len]. If rows hold documents: `positions` inside them, and `attention`, which is added to
    the scores, [rows, 1, seq_len, seq_len]."""

    tokens: torch.Tensor
    labels: torch.Tensor
    positions: torch.Tensor | None = None
    attention: torch.Tensor | None = None

    @property
    def valid(self):
        return int((self.labels != IGNORED).sum())


class Data:
    """The rows of a job's microbatches on each data rank, and the rows of its validations."""

    def __init__(self, job):
        self.job = job
        self.names = [*streams()]
        self.mixture = Mixture([streams()[name][0] for name in self.names], WEIGHTS, job.seq_len, job.seed)
        self.validation = Mixture([streams()[name][1] for name in self.names], WEIGHTS, job.seq_len, 0)

    def step(self, step, rank=0):
        """The microbatches of `rank`. The data ranks divide the step's j-th run of samples into their microbatches j."""
        job = self.job
        microbatches = []
        before = sum(job.rows_at(earlier) for earlier in range(step))
        for j in range(job.microbatches_at(step)):
            first = before + (j * job.data_ranks + rank) * job.micro_batch
            microbatches.append(self.rows([self.mixture.sample(n) for n in range(first, first + job.micro_batch)]))
        return microbatches

    def valid(self, step):
        """Valid tokens of a step, over all ranks."""
        return sum(rows.valid for rank in range(self.job.data_ranks) for rows in self.step(step, rank))

    def validations(self):
        """Each source's name and batches: the first eval_batches (0: all), each as large as the first step."""
        size = self.job.rows_at(0)
        for name, source in zip(self.names, self.validation.sources):
            rows = source.all_rows()
            batches = [self.rows(rows[i:i + size]) for i in range(0, len(rows), size)]
            yield name, batches[:self.job.eval_batches or None]

    def rows(self, samples):
        """Pads short samples with ignored labels."""
        seq_len = self.job.seq_len
        tokens = torch.zeros(len(samples), seq_len, dtype=torch.long)
        labels = torch.full_like(tokens, IGNORED)
        for row, sample in enumerate(samples):
            tokens[row, :len(sample) - 1] = torch.tensor(sample[:-1])
            labels[row, :len(sample) - 1] = torch.tensor(sample[1:])
        return self.with_documents(tokens, labels) if self.job.document_end >= 0 else Rows(tokens, labels)

    def with_documents(self, tokens, labels):
        """Attention stays inside a document, its positions start at 0, and the label after its end is ignored."""
        ends = tokens == self.job.document_end
        document = ends.long().cumsum(1) - ends.long()
        place = torch.arange(self.job.seq_len)
        same = document[:, :, None] == document[:, None, :]
        seen = same & (place[:, None] >= place[None, :])
        attention = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
        first = same.long().argmax(-1)  # where its document begins
        return Rows(tokens, labels.masked_fill(ends, IGNORED), place - first, attention[:, None])


@dataclasses.dataclass
class Result:
    """A run's figures by step, validations by step and source ("" is all), and final weights by transformers' names."""

    loss: list
    norm: list
    lr: list
    validation: dict
    weights: dict


def run_pptrain(program, folder, job, model, *settings, weights="model.safetensors"):
    """Trains in `folder`, which has the data; converts the last checkpoint to a folder and reads its file `weights`."""
    (folder / "job.toml").write_text(job.toml(model))
    run([program, "--config", "job.toml", *sets(*settings)], folder)
    run([program, "convert", "--from", "run", "--to", folder / "trained"], folder)
    result = Result([], [], [], {}, load_file(folder / "trained" / weights))
    for record in records(folder / "run"):
        if "loss" in record:
            result.loss.append(record["loss"])
            result.norm.append(record["grad_norm"])
            result.lr.append(record["lr"])
        elif "eval_loss" in record:
            losses = {name: (source["loss"], source["tokens"]) for name, source in record["eval_sources"].items()}
            result.validation[record["step"]] = {"": (record["eval_loss"], record["eval_tokens"]), **losses}
    return result
