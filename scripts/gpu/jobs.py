"""Small training jobs by the packed pptrain, and whether two of them are equal to the bit."""

import json
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from step import Failed

# Values of metrics.jsonl that must not depend on layout, schedule, launcher or chance.
KEPT = ("step", "loss", "grad_norm", "lr", "tokens", "skipped")


@dataclass
class Result:
    folder: object
    metrics: dict  # step -> the kept values as text, with all digits
    checksums: dict  # "model/layers.0.attn.q.weight" -> checksum of its bytes in the newest checkpoint


def settings(context, **more):
    """--set options of a job on Shakespeare's bytes that takes a second or two on a GPU."""
    values = {
        "run.device": context.device, "train.dtype": "bf16", "train.steps": 6 if context.quick else 20, "train.seq_len": 64,
        "train.micro_batch_size": 2, "train.grad_accum_steps": 8, "eval.interval": 0, "eval.batches": 2, "checkpoint.interval": 0,
        "lr_schedule.warmup_steps": 2, "metrics.log_interval": 1, "train.grad_clip": 0.5, "distributed.pp": 1,
    } | {name.replace("__", "."): value for name, value in more.items()}
    return [text for name, value in values.items() for text in ("--set", f"{name}={value}")]


def read_result(folder):
    metrics = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "step" in record and "loss" in record:
            metrics[record["step"]] = json.dumps({key: record[key] for key in KEPT if key in record})
    latest = (folder / "checkpoints/latest").read_text().splitlines()[0]
    manifest = json.loads((folder / "checkpoints" / latest / "manifest.json").read_text())
    # The stage of a tensor depends on the layout; its name and contents must not.
    checksums = {f"{stored['file']}/{name}": tensor["xxh3_128"]
                 for stored in manifest["files"] for name, tensor in stored["tensors"].items()}
    if not metrics or len(checksums) < 30:
        raise Failed(f"{folder.name}: {len(metrics)} steps and {len(checksums)} tensors are too few to compare")
    return Result(folder, metrics, checksums)


def train(context, name, **more):
    """Trains on thread ranks; every byte of the checkpoint is checked afterwards."""
    # Thread ranks copy among themselves, so loading kernels at their first use loses nothing and makes the start short.
    return train_processes(context, name, [{"CUDA_MODULE_LOADING": "LAZY"}], **more)


def train_processes(context, name, environments, **more):
    """The same with one process for each of `environments`, its additional variables."""
    folder = context.work / name
    shutil.rmtree(folder, ignore_errors=True)
    command = [context.program("pptrain"), "--config", "configs/shakespeare.toml", "--color", "never",
               *settings(context, **more), "--set", f"run.dir={folder}"]
    context.run(*[(command, env) for env in environments], name=name)
    context.run(([context.program("pptrain"), "verify", folder / "checkpoints"], {}), name=name + ", verify")
    return read_result(folder)


def torchrun_environments(ranks, **by_rank):
    """Environments of processes that meet over TCP on this host, as torchrun sets them; by_rank: functions of the rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [{"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": str(port)} | {name: str(value(rank)) for name, value in by_rank.items()} for rank in range(ranks)]


def train_all(context, parts, jobs, beside=1):
    """Runs jobs (name -> settings), `beside` at a time; returns the results of those that ended well, in order."""
    results = {}

    def one(name):
        with parts.part(name):
            results[name] = train(context, name, **jobs[name])

    with ThreadPoolExecutor(beside) as pool:
        list(pool.map(one, jobs))
    return [results[name] for name in jobs if name in results]


def check_all(parts, expected, others, first_step=1):
    """Compares each of `others` with `expected`; a difference is a failure of that one."""
    for other in others:
        name = other.folder.name
        if name in parts.passed:
            parts.passed.remove(name)
        with parts.part(name):
            check_equal(expected, other, first_step)
    parts.check()


def check_equal(expected, actual, first_step=1):
    """Raises Failed unless all steps from first_step on, and every tensor at the end, are equal to the bit."""
    steps = {step: text for step, text in expected.metrics.items() if step >= first_step}
    names = f"{actual.folder.name} differs from {expected.folder.name}"
    if first_step > 1 and min(actual.metrics) != first_step:
        raise Failed(f"{actual.folder.name} began with step {min(actual.metrics)}, not {first_step}")
    if sorted(steps) != sorted(step for step in actual.metrics if step >= first_step):
        raise Failed(f"{names}: steps {sorted(actual.metrics)}, not {sorted(steps)}")
    for step, text in sorted(steps.items()):
        if actual.metrics[step] != text:
            raise Failed(f"{names} in step {step}:\n{actual.metrics[step]}\n{text}")
    if sorted(expected.checksums) != sorted(actual.checksums):
        raise Failed(f"{names}: other tensors in the checkpoint")
    different = [name for name, value in expected.checksums.items() if actual.checksums[name] != value]
    if different:
        raise Failed(f"{names}: the steps agree, but of {len(expected.checksums)} tensors {len(different)} differ: "
                     + ", ".join(different[:5]))
