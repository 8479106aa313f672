#!/usr/bin/env python3
"""Characters a second of pptrain's tokenizer on one core against the Python package `tokenizers`; checks for equal ids.

    .venv/bin/python scripts/bench/compare_tokenizers.py [--pptrain build/pptrain] [--rounds 3] [--megabytes 100] [DEFINITION...]

The text is the shipped Shakespeare and the sources and notes of the Python packages in .venv, each file a document, up to
--megabytes; DEFINITION is a folder of test/core/text/tokenizer/definitions, or a tokenizer.json. The two take turns. pptrain's
time is of the whole program, with start and writing; the package's time is of `encode_batch_fast` alone. The best of the
rounds counts.
"""

import argparse
import os
import pathlib
import subprocess
import tempfile
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy
from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEFINITIONS = ROOT / "test/core/text/tokenizer/definitions"
SEPARATOR = "\x1e"  # between documents in the single file; the texts do not contain it
BATCH = 256  # documents per call of the package


def documents(size):
    result, total = [], 0
    files = [ROOT / "configs/data/tinyshakespeare.txt"]
    files += sorted(f for suffix in ("py", "rst", "txt", "md") for f in (ROOT / ".venv/lib").rglob(f"*.{suffix}"))
    for file in files:
        text = file.read_bytes().decode(errors="ignore").replace(SEPARATOR, "")
        if not text:
            continue
        result.append(text)
        total += len(text.encode())
        if total >= size:
            return result, total
    return result, total


def by_package(tokenizer, texts):
    begin = time.perf_counter()
    for first in range(0, len(texts), BATCH):
        tokenizer.encode_batch_fast(texts[first : first + BATCH], add_special_tokens=False)
    return time.perf_counter() - begin


def by_pptrain(program, definition, text, prefix):
    begin = time.perf_counter()
    subprocess.run([program, "tokenize", "--tokenizer", definition, "--out", prefix, "--document-separator", SEPARATOR, "--no-special",
                    "--eos", "none", "--threads", "1", "--overwrite", text], check=True, capture_output=True)
    return time.perf_counter() - begin


def ids_agree(tokenizer, texts, prefix):
    """The ids of all documents, in order."""
    vocabulary = tokenizer.get_vocab_size(with_added_tokens=True)
    ids = numpy.fromfile(f"{prefix}.bin", dtype=numpy.uint16 if vocabulary <= 65536 else numpy.int32)
    at = 0
    for text in texts:
        wanted = tokenizer.encode(text, add_special_tokens=False).ids
        if ids[at : at + len(wanted)].tolist() != wanted:
            return False
        at += len(wanted)
    return at == len(ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("definitions", nargs="*", metavar="DEFINITION")
    parser.add_argument("--pptrain", default=ROOT / "build/pptrain")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=100)
    arguments = parser.parse_args()
    texts, total = documents(arguments.megabytes * 1e6)
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        (folder / "text").write_bytes(SEPARATOR.join(texts).encode())
        for name in arguments.definitions or sorted(p.name for p in DEFINITIONS.iterdir() if p.is_dir()):
            definition = DEFINITIONS / name / "tokenizer.json" if (DEFINITIONS / name).is_dir() else pathlib.Path(name)
            tokenizer = Tokenizer.from_file(str(definition))
            theirs, ours = [], []
            for _ in range(arguments.rounds):
                ours.append(by_pptrain(arguments.pptrain, definition, folder / "text", folder / "out"))
                theirs.append(by_package(tokenizer, texts))
            same = "the same ids" if ids_agree(tokenizer, texts, folder / "out") else "OTHER IDS"
            print(f"{name:10} {total / 1e6:.0f} MB: tokenizers {total / min(theirs) / 1e6:6.2f} MB/s, "
                  f"pptrain {total / min(ours) / 1e6:6.2f}, {min(theirs) / min(ours):.1f} times as fast, {same}", flush=True)


if __name__ == "__main__":
    main()
