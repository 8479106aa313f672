#!/usr/bin/env python3
"""Time of a step by data.lengths, on documents whose lengths have a long tail, beside what their lengths foretell.

    .venv/bin/python scripts/bench/compare_lengths.py [--pptrain build/pptrain] [--rounds 3] [--packing none|sequential|best_fit]

Documents of random tokens have log-normal lengths (median 150 tokens, a twentieth beyond 800), cut at the job's 1,024. Each run
takes as many steps of the same documents; `exact` and `padded` take turns. Printed are tokens computed for each token that
counts (metrics.jsonl's computed_tokens / tokens), tokens that count by the second (median of a run's steps after the first
three, then the best run), and the two ratios: what padding costs in tokens, and what it costs in time.
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


def run(program, folder, name, lengths, packing):
    subprocess.run([program, "--config", "job.toml", "--set", f"run.dir={name}", "--set", f"data.lengths={lengths}",
                    "--set", f"data.packing={packing}"], cwd=folder, check=True, capture_output=True,
                   env={**os.environ, "OMP_NUM_THREADS": "1"})
    records = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    steps = [r for r in records if "grad_norm" in r]
    rate = statistics.median(r["tokens"] / r["step_time_s"] for r in steps[3:])
    return sum(r["computed_tokens"] for r in steps) / sum(r["tokens"] for r in steps), rate


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pptrain", type=pathlib.Path, default=ROOT / "build/pptrain")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--packing", choices=["none", "sequential", "best_fit"], default="none")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        (folder / "job.toml").write_text(JOB)
        write_documents(folder / "documents", 20_000)
        tokens, rates = {}, {"exact": [], "padded": []}
        for turn in range(arguments.rounds):
            for lengths, found in rates.items():
                tokens[lengths], rate = run(arguments.pptrain.resolve(), folder, f"{lengths}_{turn}", lengths, arguments.packing)
                found.append(rate)
        for lengths, found in rates.items():
            print(f"{lengths:7} {tokens[lengths]:.3f} tokens computed for one that counts, {max(found):8,.0f} that count a second")
        print(f"padded / exact: {tokens['padded'] / tokens['exact']:.2f} times the tokens, "
              f"{max(rates['exact']) / max(rates['padded']):.2f} times the time")


if __name__ == "__main__":
    main()
