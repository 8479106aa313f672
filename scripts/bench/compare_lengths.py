#!/usr/bin/env python3
"""Time of a step by data.lengths and data.balance, on documents with long-tailed lengths, and the predictions of plan.

    .venv/bin/python scripts/bench/compare_lengths.py [--pptrain build/pptrain] [--rounds 3] [--packing none|sequential|best_fit]
        [--schedule 1f1b]

Documents of random tokens have log-normal lengths (median 150 tokens, a twentieth beyond 800), cut at the job's 1,024. Each run
takes the same number of steps of the same documents on two pipeline ranks; the kinds of lengths take turns. Prints computed
tokens per valid token (metrics.jsonl's computed_tokens / tokens) and valid tokens per second (median of a run's steps after the
first three, then the best run). Then prints the predictions of `pptrain plan` for the first eight steps with exact lengths, by
data.balance, on these ranks and on pp 4 x dp 2.
"""

import argparse
import json
import os
import pathlib
import statistics
import struct
import subprocess
import tempfile

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
VOCABULARY, ROW = 4096, 1024
JOB = f"""
[model]
hidden_size = 256
intermediate_size = 704
num_hidden_layers = 4
num_attention_heads = 8
vocab_size = {VOCABULARY}
[distributed]
pp = 2
[train]
steps = 9
seq_len = {ROW}
micro_batch_size = 2
grad_accum_steps = 8
[data]
path = "documents.bin"
format = "megatron"
[checkpoint]
interval = 0
[lr_schedule]
warmup_steps = 3
"""


def write_documents(prefix, count):
    """Megatron-LM's files: ids of 2 bytes, and an index of version 1."""
    rng = numpy.random.default_rng(1)
    lengths = numpy.clip(rng.lognormal(numpy.log(150), 1.0, count), 8, ROW).astype(numpy.int32)
    rng.integers(1, VOCABULARY, lengths.sum(), dtype=numpy.uint16).tofile(f"{prefix}.bin")
    starts = numpy.concatenate([[0], numpy.cumsum(lengths[:-1], dtype=numpy.int64)]) * 2
    with open(f"{prefix}.idx", "wb") as index:
        index.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, count, count + 1))
        index.write(lengths.tobytes() + starts.astype(numpy.int64).tobytes() + numpy.arange(count + 1, dtype=numpy.int64).tobytes())


KINDS = {  # kinds of lengths
    "exact": {"data.lengths": "exact"},
    "balanced": {"data.lengths": "exact", "data.balance": "schedule"},
    "padded": {"data.lengths": "padded"},
    "packed": {"data.lengths": "fixed", "data.packing": "best_fit"},
}


def options(settings):
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def run(program, folder, name, settings):
    subprocess.run([program, "--config", "job.toml", *options(settings | {"run.dir": name})], cwd=folder, check=True,
                   capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    records = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    steps = [r for r in records if "grad_norm" in r]
    rate = statistics.median(r["tokens"] / r["step_time_s"] for r in steps[3:])
    return sum(r["computed_tokens"] for r in steps) / sum(r["tokens"] for r in steps), rate


def plan(program, folder, settings):
    """Seconds of a step with microbatches of equal cost, and with balance by the schedule."""
    text = subprocess.run([program, "plan", "--config", "job.toml", "--format", "json", "--device", "modelled", *options(settings)],
                          cwd=folder, check=True, capture_output=True, text=True).stdout
    lengths = json.loads(text)["predicted_lengths"]
    return lengths["microbatches"], lengths["schedule"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pptrain", type=pathlib.Path, default=ROOT / "build/pptrain")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--packing", choices=["none", "sequential", "best_fit"], default="none")
    parser.add_argument("--schedule", default="1f1b")
    arguments = parser.parse_args()
    program = arguments.pptrain.resolve()
    common = {"data.packing": arguments.packing, "distributed.pp_schedule": arguments.schedule}
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        (folder / "job.toml").write_text(JOB)
        write_documents(folder / "documents", 20_000)
        tokens, rates = {}, {kind: [] for kind in KINDS}
        for turn in range(arguments.rounds):
            for kind, settings in KINDS.items():
                tokens[kind], rate = run(program, folder, f"{kind}_{turn}", common | settings)
                rates[kind].append(rate)
        for kind, found in rates.items():
            print(f"{kind:8} {tokens[kind]:.3f} tokens computed for one that counts, {max(found):8,.0f} that count a second, "
                  f"{max(found) / max(rates['exact']):.2f} of exact's")
        for name, mesh in (("pp 2", {}), ("pp 4 x dp 2", {"distributed.pp": 4, "distributed.dp": 2})):
            alike, balanced = plan(program, folder, common | KINDS["exact"] | mesh)
            print(f"plan, {name}: exact {alike:.3f} s, balanced {balanced:.3f} s, {alike / balanced:.2f} times as fast")


if __name__ == "__main__":
    main()
