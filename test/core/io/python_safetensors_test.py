"""Our safetensors reader and writer against the Python package: TOOL lists and copies files (safetensors_tool.cpp)."""

import json
import os
import random
import struct
import subprocess
import sys
import tempfile

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

tool = sys.argv[1]
types = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool,
}


def tensor_of(name, shape, generator):
    count = int(torch.tensor(shape).prod()) if shape else 1
    if name == "BOOL":
        return torch.randint(0, 2, shape, generator=generator).bool()
    size = torch.empty([], dtype=types[name]).element_size()
    raw = torch.randint(0, 256, (count * size,), generator=generator, dtype=torch.uint8)
    return raw.view(types[name]).reshape(shape) if count else torch.empty(shape, dtype=types[name])


def raw_bytes(tensor):
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def run(*arguments):
    return subprocess.run([tool, *arguments], capture_output=True, text=True)


def check_both_ways(folder):
    generator = torch.Generator().manual_seed(0)
    shapes = [(), (1,), (3,), (0, 4), (2, 3, 5)]
    tensors = {f"{t}.{i}": tensor_of(t, s, generator) for t in types for i, s in enumerate(shapes)}
    metadata = {"format": "pt", "note": "caf\u00e9"}
    theirs, ours = os.path.join(folder, "theirs"), os.path.join(folder, "ours")
    save_file(tensors, theirs, metadata=metadata)

    lines = run("list", theirs).stdout.splitlines()
    seen = {}
    for line in lines:
        if line.startswith("tensor "):
            _, name, dtype, shape, *rest = line.split(" ")
            seen[name] = (dtype, tuple(int(d) for d in shape.split(",") if d), bytes.fromhex("".join(rest)))
    expected = {n: (n.split(".")[0], tuple(t.shape), raw_bytes(t)) for n, t in tensors.items()}
    assert seen == expected, "our reader sees something else"
    assert {f"metadata {k} {v}" for k, v in metadata.items()} <= set(lines)

    done = run("copy", theirs, ours)
    assert done.returncode == 0, done.stderr
    back = load_file(ours)
    assert {n: raw_bytes(t) for n, t in back.items()} == {n: e[2] for n, e in expected.items()}
    assert all(back[n].dtype == t.dtype and back[n].shape == t.shape for n, t in tensors.items())
    with safe_open(ours, "pt") as f:
        assert f.metadata() == metadata
    header_length = struct.unpack("<Q", open(ours, "rb").read(8))[0]
    assert header_length % 8 == 0


def check_same_verdict(folder):
    """On damaged headers both sides give the same verdict."""
    good = os.path.join(folder, "good")
    save_file({"a": torch.arange(4.0), "b": torch.arange(3, dtype=torch.int64)}, good, metadata={"k": "v"})
    data = open(good, "rb").read()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    rng = random.Random(1)
    files, texts, accepted = [], [], []
    for number in range(300):
        changed = json.loads(json.dumps(header))
        entry = changed[rng.choice(["a", "b"])]
        field = rng.choice(["dtype", "shape", "data_offsets"])
        if field == "dtype":
            entry["dtype"] = rng.choice(["F32", "I64", "I32", "F64", "X", 3])
        elif field == "shape":
            entry["shape"] = rng.choice([[], [2, 2], [0], [-1], [2**62, 8], [4.0], [1, 4], [24], "4"])
        else:
            entry["data_offsets"][rng.randrange(2)] = rng.choice([0, 1, 16, 24, 40, -1, 2**63, 2**65, None])
        texts.append(json.dumps(changed).encode())
        files.append(os.path.join(folder, f"changed{number}"))
        with open(files[-1], "wb") as f:
            f.write(struct.pack("<Q", len(texts[-1])) + texts[-1] + data[8 + length :])
        try:
            with safe_open(files[-1], "pt"):
                accepted.append(True)
        except Exception:
            accepted.append(False)
    done = run("check", *files)
    assert done.returncode == 0, f"crash: {done.returncode}"
    verdicts = done.stdout.splitlines()
    assert len(verdicts) == len(files)
    for text, theirs, ours in zip(texts, accepted, verdicts):
        assert theirs == (ours == "ok"), f"the package says {theirs}, ours says {ours!r} to {text}"
    assert 50 < sum(accepted) < 250, sum(accepted)


with tempfile.TemporaryDirectory() as folder:
    check_both_ways(folder)
    check_same_verdict(folder)
print("ok")
