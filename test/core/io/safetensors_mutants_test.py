"""Damaged safetensors files: our reader and the Python package give the same verdict and read the same values.

If our reader refuses a file that the package accepts, one of our rules must be the reason (REASONS), found here by
another reading of the header. PPTRAIN_SAFETENSORS_MUTANTS: the number of files (4000).
"""

import collections
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

import safetensors

tool = sys.argv[1]
count = int(os.environ.get("PPTRAIN_SAFETENSORS_MUTANTS", 4000))
SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "C64": 8, "I64": 8, "I32": 4, "I16": 2,
         "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1}
EDGES = [0, 1, 2, 3, 7, 8, -1, 2**31 - 1, 2**31, 2**32, 2**53, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30]


class Raw(str):
    """Literal JSON text."""


class Object(list):
    """A JSON object as pairs, so that a key may come twice."""


def write(value, rng):
    space = rng.choice(["", "", " ", "\n", "\t"]) if rng.random() < 0.1 else ""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, Object):
        return "{" + space + ",".join(f"{write(k, rng)}:{space}{write(v, rng)}" for k, v in value) + "}" + space
    if isinstance(value, list):
        return "[" + ",".join(space + write(v, rng) for v in value) + "]"
    return json.dumps(value, ensure_ascii=rng.random() < 0.5)


def sound(rng):
    """A header and data bytes for one to four small tensors."""
    header, data = Object(), b""
    for number in range(rng.randint(1, 4)):
        dtype = rng.choice(list(SIZES))
        shape = rng.choice([[], [1], [3], [0], [2, 2], [0, 4], [1, 3, 1]])
        size = SIZES[dtype]
        for dim in shape:
            size *= dim
        entry = Object([["dtype", dtype], ["shape", shape], ["data_offsets", [len(data), len(data) + size]]])
        rng.shuffle(entry)
        header.append([rng.choice(["w", "layers.0.attn", "caf\u00e9", "", "\U0001f600", "a\"b\\"]) + str(number), entry])
        data += rng.randbytes(size) if dtype != "BOOL" else bytes(rng.randrange(2) for _ in range(size))
    rng.shuffle(header)
    if rng.random() < 0.5:
        header.insert(rng.randint(0, len(header)), ["__metadata__", Object([["format", "pt"], ["k\u00e9", "v\n"]])])
    return header, data


def nested(rng):
    value = rng.choice([1, -1.5, None, True, "text", Raw("1e3"), Raw("1e999"), Raw("-0"), 2**70, Raw("01"), Raw("NaN")])
    for _ in range(rng.choice([0, 0, 1, 1, 2, 3, 125, 140])):
        value = [value] if rng.random() < 0.5 else Object([["k", value]])
    return value


def number(rng, old):
    if isinstance(old, int) and rng.random() < 0.3:
        return old + rng.choice([-1, 1])
    return rng.choice(EDGES + [1.0, None, "1", True, [1], Raw("1e0"), Raw("-0"), Raw("+1"), Raw("00"), Raw("0x1")])


def change_entry(entry, rng):
    field = rng.choice(entry)
    kind = rng.randrange(6)
    if kind == 0 and type(field[1]) is list and field[1]:
        at = rng.randrange(len(field[1]))
        field[1][at] = number(rng, field[1][at])
    elif kind == 1 and type(field[1]) is list:
        field[1].insert(rng.randint(0, len(field[1])), rng.choice([0, 1, 1, 1, 2] + EDGES))
    elif kind == 2:
        field[1] = rng.choice([*SIZES, "F4", "F8_E8M0", "F6_E2M3", "I4", "f32", "", 3, None, Object()])
    elif kind == 3:
        entry.append(rng.choice([["note", nested(rng)], ["note", nested(rng)], list(field), ["dtype", "U8"]]))
    elif kind == 4:
        entry.remove(field)
    else:
        rng.shuffle(entry)


def change_header(header, rng):
    at = rng.randrange(len(header))
    name, entry = header[at]
    kind = rng.randrange(12)
    if kind < 5 and isinstance(entry, Object) and entry and name != "__metadata__":
        change_entry(entry, rng)
    elif kind == 5:
        header[at][0] = rng.choice(["new", "__metadata__", Raw('"\\u0061"'), Raw('"\\ud800"'), Raw('"\\u0000"'), Raw('"\\x"'),
                                    Raw('"\x01"'), Raw('"\\ud83d\\ude00"')])
    elif kind == 6:
        header.insert(rng.randint(0, len(header)), json_copy(rng.choice(header)))
    elif kind == 7 and isinstance(entry, Object):
        fields = {k: v for k, v in entry if isinstance(k, str)}
        header[at][1] = [fields.get(k) for k in ("dtype", "shape", "data_offsets")]
    elif kind == 8:
        header[at][1] = nested(rng)
    elif kind == 9:
        value = rng.choice([None, Object([["a", "b"], ["a", "c"]]), Object([["a", 1]]), Object([["a", None]]), "text", [], Object()])
        header[:] = [e for e in header if e[0] != "__metadata__"] + [["__metadata__", value]]
    elif kind == 10 and len(header) > 1:
        header.remove(header[at])
    else:
        rng.shuffle(header)


def json_copy(value):
    if isinstance(value, list):
        return type(value)(json_copy(v) for v in value)
    return value


def change_text(text, rng):
    kind, at = rng.randrange(5), rng.randint(0, len(text))
    if kind == 0 and text:
        at = rng.randrange(len(text))
        return text[:at] + bytes([text[at] ^ 1 << rng.randrange(8)]) + text[at + 1:]
    if kind == 1:
        return text[:at] + text[at + rng.randint(1, 8):]
    if kind == 2:
        return text[:at] + rng.choice([b",", b"{", b"}", b"]", b'"', b"0", b"\0", b"\xff", b"\xef\xbb\xbf", b"\\", b" "]) + text[at:]
    if kind == 3:
        return rng.choice([b" ", b"\n", b"\xef\xbb\xbf", b"\0"]) + text
    return text + rng.choice([b" ", b"      ", b"\n", b"\0", b"\0\0\0\0", b"\0{}", b"{}", b"x", b"\t\r\n", b","])


def mutant(rng):
    header, data = sound(rng)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        if header:
            change_header(header, rng)
    text = write(header, rng).encode("utf-8", "surrogatepass")
    if rng.random() < 0.25:
        text = change_text(text, rng)
    if rng.random() < 0.1:
        data = rng.choice([data + b"\0", data[:-1], b""])
    length = len(text)
    if rng.random() < 0.1:
        length = rng.choice([length - 1, length + 1, 0, length + len(data), 2**31, 2**63, 2**64 - 1, 100_000_001])
    whole = struct.pack("<Q", max(length, 0)) + text + data
    return whole[: rng.randrange(len(whole))] if rng.random() < 0.03 else whole


def theirs(whole):
    """The package's verdict: our tool's output for an accepted file, or None."""
    try:
        tensors = safetensors.deserialize(whole)
    except safetensors.SafetensorError:
        return None
    line = ""
    for name, tensor in sorted(tensors, key=lambda t: t[0].encode()):
        shape = "".join(f"{dim}," for dim in tensor["shape"])
        line += f" {name.encode().hex()}:{tensor['dtype']}:{shape}:{bytes(tensor['data']).hex()}"
    metadata = header_of(whole).get("__metadata__")
    for key, value in sorted((metadata or {}).items(), key=lambda item: item[0].encode()):
        line += f" {key.encode().hex()}={value.encode().hex()}"
    return "ok" + line


def header_text(whole):
    return whole[8 : 8 + struct.unpack("<Q", whole[:8])[0]].decode()


def header_of(whole):
    return json.loads(header_text(whole))


def depth(value):
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def repeats_a_key(text):
    found = []
    json.loads(text, object_pairs_hook=lambda pairs: found.append(len(dict(pairs)) < len(pairs)) or dict(pairs))
    return any(found)


def entries(header):
    return [e for name, e in header.items() if name != "__metadata__"]


def overflows(entry):
    size = SIZES[entry["dtype"]]
    for dim in entry["shape"]:
        size *= max(dim, 1)
    return size >= 2**63


# Our rules that the package does not have, in the order of the search.
REASONS = {
    "a key comes twice": lambda text, header: repeats_a_key(text),
    "nested deeper than 4": lambda text, header: depth(header) > 4,
    "text before the header's '{'": lambda text, header: not text.startswith("{"),
    "__metadata__ is null": lambda text, header: "__metadata__" in header and header["__metadata__"] is None,
    "a tensor is a list": lambda text, header: any(isinstance(e, list) for e in entries(header)),
    "a type that LibTorch lacks": lambda text, header: any(e["dtype"] not in SIZES for e in entries(header)),
    "a dim of 2^63 or more": lambda text, header: any(d >= 2**63 for e in entries(header) for d in e["shape"]),
    "a shape without elements that overflows": lambda text, header: any(map(overflows, entries(header))),
}


def reason_of(whole):
    text, header = header_text(whole), header_of(whole)
    return next((reason for reason, holds in REASONS.items() if holds(text, header)), None)


def verdicts(mutants):
    with tempfile.NamedTemporaryFile() as batch:
        for whole in mutants:
            batch.write(struct.pack("<I", len(whole)) + whole)
        batch.flush()
        done = subprocess.run([tool, "verdicts", batch.name], capture_output=True)
    assert done.returncode == 0, f"crash: {done.returncode} {done.stderr}"
    lines = done.stdout.decode(errors="replace").split("\n")[:-1]
    assert len(lines) == len(mutants), (len(lines), len(mutants))
    return lines


def main():
    sys.setrecursionlimit(10000)
    rng = random.Random(11)
    accepted, stricter = 0, collections.Counter()
    for begin in range(0, count, 5000):
        mutants = [mutant(rng) for _ in range(min(5000, count - begin))]
        for whole, ours in zip(mutants, verdicts(mutants)):
            expected = theirs(whole)
            if expected is None:
                assert ours.startswith("no "), f"the package refuses, ours reads {ours!r} from {whole!r}"
            elif ours.startswith("ok"):
                assert ours == expected, f"{whole!r}: ours reads\n{ours}\nthe package\n{expected}"
                accepted += 1
            else:
                reason = reason_of(whole)
                assert reason, f"the package accepts {whole!r}, ours says {ours!r}"
                stricter[reason] += 1
    print(f"{count} files: {accepted} accepted by both with equal values, {sum(stricter.values())} by the package alone:")
    for reason in REASONS:
        print(f"  {stricter[reason]:6} {reason}")
    assert count // 5 < accepted < count
    assert count < 100_000 or all(stricter[reason] for reason in REASONS), "a reason that no file had"


main()
print("ok")
