"""A model of 1B parameters trained whole by pptrain on one GPU: tokens/s and MFU from its own metrics.

    python3 scripts/bench/gpu_whole.py --pptrain build/pptrain --out whole.json
    python3 scripts/bench/gpu_whole.py --pptrain build/pptrain --device cpu --small --out whole.json

Writes random tokens and a job (Llama 3.2 1B's sizes, sequences of 4,096) into a temporary folder, starts the program, and ends
it when enough steps are in metrics.jsonl. (A run that ends by itself saves a checkpoint, which is no part of the speed.) If
the program has the keys, the script measures both values of train.deterministic, and train.fp8 = "rowwise". Needs only Python.
"""

import argparse
import array
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Sizes:
    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    seq: int
    micro_batch: int
    microbatches: int

    def tokens(self) -> int:
        """The tokens of a step."""
        return self.seq * self.micro_batch * self.microbatches

    def flops_per_token(self) -> float:
        """Useful operations, as models/flops.h counts them; the head is the embedding's weight."""
        inner = self.hidden
        block = self.hidden * (2 * inner + 2 * self.kv_heads * (inner // self.heads) + 3 * self.ffn)
        return 6.0 * (self.layers * block + self.vocab * self.hidden) + 6.0 * self.layers * self.seq * inner


LLAMA_1B = Sizes(2048, 8192, 16, 32, 8, 128256, seq=4096, micro_batch=2, microbatches=8)
SMALL = Sizes(64, 128, 2, 4, 2, 512, seq=64, micro_batch=1, microbatches=2)

JOB = """[run]
dir = "{folder}/run"
device = "{device}"
[model]
arch = "llama"
hidden_size = {sizes.hidden}
intermediate_size = {sizes.ffn}
num_hidden_layers = {sizes.layers}
num_attention_heads = {sizes.heads}
num_key_value_heads = {sizes.kv_heads}
vocab_size = {sizes.vocab}
rope_theta = 500000.0
rms_norm_eps = 1e-5
tie_word_embeddings = true
[train]
steps = 1000000
seq_len = {sizes.seq}
micro_batch_size = {sizes.micro_batch}
grad_accum_steps = {sizes.microbatches}
dtype = "bf16"
{mode}
[data]
path = "{folder}/tokens.bin"
format = "bin"
dtype = "uint32"
shuffle = false
[optimizer]
name = "adamw"
lr = 1e-5
[lr_schedule]
name = "constant"
warmup_steps = 0
[checkpoint]
interval = 0
[metrics]
log_interval = 1
peak_tflops = {peak_tflops}
"""


class RunFailed(Exception):
    pass


def write_tokens(path: Path, sizes: Sizes, steps: int) -> None:
    count = sizes.tokens() * steps + 1
    path.write_bytes(array.array("I", random.Random(0).choices(range(sizes.vocab), k=count)).tobytes())


def records(folder: Path) -> list[dict]:
    """The records of the steps so far; the last line may be incomplete."""
    path = folder / "run" / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [record for record in map(json.loads, lines) if "tokens_per_s" in record]


def train(args, folder: Path, steps: int) -> list[dict]:
    """Records of this number of steps. The program's output goes to folder / "log"."""
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([args.pptrain, "--config", folder / "job.toml"], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + args.timeout
            while len(records(folder)) < steps:
                if process.poll() is not None:
                    words = (folder / "log").read_text(errors="replace").strip().splitlines()
                    raise RunFailed(f"exit status {process.returncode}: {words[-1] if words else 'no message'}")
                if time.monotonic() > deadline:
                    raise RunFailed(f"{len(records(folder))} of {steps} steps after {args.timeout} s")
                time.sleep(0.05)
        finally:
            process.kill()
            process.wait()
    return records(folder)[:steps]


def figures(sizes: Sizes, steps: list[dict], warmup: int) -> dict:
    """Medians without the first steps, since these still allocate memory."""
    measured = steps[warmup:]

    def middle(key: str) -> float | None:
        values = [record[key] for record in measured if record[key] is not None]
        return statistics.median(values) if values else None

    rate = middle("tokens_per_s")
    row = {"steps": len(measured), "warmup_steps": warmup, "tokens_per_step": sizes.tokens(), "tokens_per_s": rate}
    row |= {"step_s": middle("step_time_s"), "mfu": middle("mfu"), "memory_gb": max(record["memory_gb"] for record in measured)}
    row |= {"flops_per_token": sizes.flops_per_token(), "flops_per_s": rate * sizes.flops_per_token()}
    row |= {"all_tokens_per_s": [record["tokens_per_s"] for record in measured], "last_loss": steps[-1]["loss"]}
    return row


def modes(args) -> dict[str, str]:
    """The name of each measured mode, and its lines in [train]."""
    schema = subprocess.run([args.pptrain, "config", "--schema"], capture_output=True, text=True, check=True).stdout
    known = json.loads(schema)["properties"]["train"]["properties"]
    base, found = "", {"default": ""}
    if args.device != "cpu" and "deterministic" in known:
        base = "deterministic = true\n"
        found = {"deterministic": base, "fastest": "deterministic = false"}
    return found | ({"fp8": base + 'fp8 = "rowwise"'} if "fp8" in known else {})


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pptrain", type=Path, required=True, help="the executable")
    parser.add_argument("--out", type=Path, required=True, help="file of the figures, JSON")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="a small model, for a CPU")
    parser.add_argument("--steps", type=int, default=16, help="measured steps")
    parser.add_argument("--warmup", type=int, default=4, help="steps before them")
    parser.add_argument("--peak-tflops", type=float, default=0, help="for the MFU; of a known GPU without it")
    parser.add_argument("--timeout", type=float, default=150, help="seconds for each run")
    args = parser.parse_args()
    args.pptrain = args.pptrain.resolve()
    return args


def main() -> int:
    args = parse_arguments()
    sizes = SMALL if args.small else LLAMA_1B
    report = {"device": args.device, "small": args.small, "rows": []}
    for name, line in modes(args).items():
        row = {"name": name, "sequence": sizes.seq}
        with tempfile.TemporaryDirectory(prefix="pptrain_whole_") as temporary:
            folder = Path(temporary)
            write_tokens(folder / "tokens.bin", sizes, args.warmup + args.steps)
            values = {"folder": folder, "device": args.device, "sizes": sizes, "mode": line, "peak_tflops": args.peak_tflops}
            (folder / "job.toml").write_text(JOB.format(**values))
            try:
                row |= figures(sizes, train(args, folder, args.warmup + args.steps), args.warmup)
                print(f"1B, {name}: {row['tokens_per_s']:.0f} tokens/s, MFU {row['mfu']}", flush=True)
            except RunFailed as error:
                row["error"] = str(error)
                print(f"1B, {name}: failed: {error}\n{(folder / 'log').read_text(errors='replace')[-2000:]}", flush=True)
        report["rows"].append(row)
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    return int(any("error" in row for row in report["rows"]))


if __name__ == "__main__":
    sys.exit(main())
