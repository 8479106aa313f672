#!/usr/bin/env python3
"""Tokens a second of pptrain generate with pp = 2 against transformers' generate with the same total of threads.

    .venv/bin/python scripts/bench/compare_generate.py [--pptrain build/pptrain] [--rounds 3] [--mpirun] [SIZE...]

The model is a Llama with random weights; prompts have equal lengths, so that transformers takes them as one batch
without padding. The two take turns. A time is of generation alone, without loading; the best of the rounds counts.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/support"))
from pptrain import environment, mpi_command  # noqa: E402

THREADS, PROMPT_TOKENS = 2, 16
SIZES = {  # hidden, intermediate, layers, heads, key-value heads, vocabulary
    "tiny": (96, 256, 4, 6, 2, 512),
    "small": (512, 1408, 8, 8, 4, 4096),
    "medium": (1024, 2816, 12, 16, 8, 16384),
}
JOB = """
[train]
steps = 1
seq_len = 16
grad_accum_steps = 2
dtype = "{dtype}"
[data]
path = "unused"
format = "bin"
[distributed]
pp = 2
[run]
threads = 1
"""


def build(size, dtype):
    hidden, intermediate, layers, heads, kv_heads, vocab = SIZES[size]
    torch.manual_seed(1)
    config = LlamaConfig(hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
                         num_attention_heads=heads, num_key_value_heads=kv_heads, vocab_size=vocab,
                         max_position_embeddings=1024, bos_token_id=1, eos_token_id=2)
    return LlamaForCausalLM(config).to(dtype).eval()


def by_transformers(model, prompts, tokens):
    ids = torch.tensor(prompts)
    begin = time.perf_counter()
    with torch.no_grad():
        model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens,
                       eos_token_id=None, pad_token_id=0)
    return time.perf_counter() - begin


def by_pptrain(command, folder, prompts, tokens):
    arguments = [x for p in prompts for x in ("--prompt-ids", ",".join(map(str, p)))]
    done = subprocess.run([*command, "generate", "--config", folder / "job.toml", "--checkpoint", folder / "hf", *arguments,
                           "--greedy", "--json", "--max-tokens", str(tokens)],
                          capture_output=True, text=True, check=True, env=environment())
    return float(re.search(r"tokens in ([\d.]+) s", done.stderr).group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sizes", nargs="*", metavar="SIZE", help=", ".join(SIZES))
    parser.add_argument("--pptrain", default=ROOT / "build/pptrain")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--prompts", type=int, nargs="+", default=[1, 2, 4, 8], help="at a time")
    parser.add_argument("--mpirun", action="store_true", help="two processes in place of two threads")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    command = [*(mpi_command("mpirun", 2) if arguments.mpirun else []), arguments.pptrain]
    for size in arguments.sizes or SIZES:
        with tempfile.TemporaryDirectory() as path:
            folder = pathlib.Path(path)
            model = build(size, torch.float32 if arguments.dtype == "fp32" else torch.bfloat16)
            model.save_pretrained(folder / "hf")
            (folder / "job.toml").write_text(JOB.format(dtype=arguments.dtype))
            for count in arguments.prompts:
                prompts = [[3 + (7 * i + j) % 500 for j in range(PROMPT_TOKENS)] for i in range(count)]
                theirs, ours = [], []
                for _ in range(arguments.rounds):
                    theirs.append(by_transformers(model, prompts, arguments.tokens))
                    ours.append(by_pptrain(command, folder, prompts, arguments.tokens))
                made = count * arguments.tokens
                print(f"{size:7} {arguments.dtype}  {count} prompts: transformers {made / min(theirs):8.1f} tokens/s, "
                      f"pptrain {made / min(ours):8.1f}, {min(theirs) / min(ours):.2f} times as fast", flush=True)


if __name__ == "__main__":
    main()
