"""Merges the figures of gpu_bench, gpu_torch_stage.py and gpu_whole.py into one JSON file and one page of tables.

    python3 scripts/bench/gpu_report.py --bench bench.json --torch torch.json --whole whole.json --json all.json --markdown all.md

Names the parts that are missing. Figures that have goals are shown with them. Needs only Python.
"""

import argparse
import json
import sys
from pathlib import Path

from contest import formatted

MFU_GOALS = {4096: 0.65, 8192: 0.60}  # for a stage, by the tokens of its sequences
COPY_SHARE_GOAL = 0.85  # for a memory-bound kernel
FP8_GOAL = 1.15  # for a model of 1B, relative to bf16
MODES = ("deterministic", "fastest", "fp8")  # of a model of 1B: train.deterministic true and false; true with train.fp8
FORMS = ("tensor", "row", "1x128")  # of FP8, by the numbers that share a scale
ADVICE = {
    "MFU": "the stage's row: host ms near device ms asks for CUDA graphs; syncs above 0 are waits of the host; else compare "
           "products (sustained) and attention with what the stage needs of them",
    "of the copy's rate": "host us near us: the launch bounds it; else its loads (16 bytes a thread, blocks enough), with ncu",
    "of bf16's speed": "the FP8 GEMMs: their quantising, or they themselves; the rest of a step is in bf16",
}
PARTS = ("bench", "torch", "whole")


def number(value, scale: float = 1, decimals: int = 0) -> str:
    return "" if value is None else f"{value * scale:,.{decimals}f}"


def tera(value) -> str:
    return number(value, 1e-12, 1)


def percent(value) -> str:
    return "" if value is None else f"{value:.1%}"


def rows_of(parts: dict, section: str) -> list[dict]:
    return parts.get("bench", {}).get("sections", {}).get(section, {}).get("rows", [])


def times_bf16(parts: dict, row: dict) -> float | None:
    """The speed of a model of 1B relative to the first mode, which multiplies in bf16."""
    rate, base = row.get("tokens_per_s"), parts["whole"]["rows"][0].get("tokens_per_s")
    return rate / base if rate and base else None


def goals(parts: dict) -> list[dict]:
    """Each figure that has a goal, with the goal. Small sizes have none."""
    found = []
    if any(parts.get(part, {}).get("small") for part in ("bench", "whole")):
        return found
    for row in rows_of(parts, "stages"):
        goal = MFU_GOALS.get(row["sequence"])
        if goal is not None:
            words = [f"{row['name']} stage", f"{row['sequence']} tokens", f"recompute {row['recompute']}"]
            words += [row["backward"], row["attention"]]
            found.append({"what": ", ".join(words), "unit": "MFU", "goal": goal, "measured": row.get("mfu")})
    for row in rows_of(parts, "kernels"):
        found.append({"what": row["name"], "unit": "of the copy's rate", "goal": COPY_SHARE_GOAL, "measured": row.get("share")})
    for row in parts.get("whole", {}).get("rows", []):
        if row["name"] == "fp8":
            found.append({"what": "1B, fp8", "unit": "of bf16's speed", "goal": FP8_GOAL, "measured": times_bf16(parts, row)})
    for goal in found:
        goal["met"] = goal["measured"] is not None and goal["measured"] >= goal["goal"]
        goal["advice"] = ADVICE[goal["unit"]]
    return found


def table(title: str, names: int, head: list[str], rows: list[list[str]]) -> list[str]:
    return ["", f"## {title}", "", formatted([head, *rows], markdown=True, names=names)] if rows else []


def met_word(parts: dict, measured, goal) -> str:
    """Small sizes have no goals."""
    if goal is None or parts.get("bench", {}).get("small"):
        return ""
    return "yes" if measured is not None and measured >= goal else "no"


def form_of(row: dict) -> str:
    return row.get("form", "bf16")


def product_tables(parts: dict) -> list[str]:
    rows, peak = rows_of(parts, "products"), parts.get("bench", {}).get("peak_flops") or None

    def key(row):
        return row["name"], row["kernel"], row["rows"], form_of(row)

    sustained = {key(row): row for row in rows if row["kind"] == "sustained" and row["name"] != "block"}
    lines = []
    for row in rows:
        if row["kind"] != "burst" or form_of(row) != "bf16":
            continue
        long = sustained.get(key(row), {}).get("flops_per_s")
        share = long / peak if long and peak else None
        lines.append([row["name"], row["kernel"], number(row["rows"]), tera(long), percent(share), tera(row.get("flops_per_s"))])
    head = ["product", "kernel", "rows", "sustained, TFLOP/s", "of peak", "burst, TFLOP/s"]
    blocks = []
    for row in rows:
        if row["name"] == "block":
            rate = row.get("flops_per_s")
            cells = [form_of(row), number(row["rows"]), number(row.get("total_s"), 1, 1), tera(rate)]
            cells += [percent(rate / peak if rate and peak else None)]
            blocks.append([*cells, tera(row.get("first_tenth_flops_per_s")), tera(row.get("last_tenth_flops_per_s"))])
    block_head = ["form", "rows", "seconds", "TFLOP/s", "of peak", "first tenth", "last tenth"]
    return table("All products of a block in turns", 1, block_head, blocks) + table("Matrix products", 2, head, lines)


def form_table(parts: dict, kind: str, title: str) -> list[str]:
    """GEMMs in FP8 with quantising, and without it where that was timed, each with its ratio to bf16."""
    rows = {(row["name"], row["kernel"], row["rows"], form_of(row)): row for row in rows_of(parts, "products") if row["kind"] == kind}
    keys = ["flops_per_s", "gemm_flops_per_s"] if any("gemm_flops_per_s" in row for row in rows.values()) else ["flops_per_s"]
    lines = []
    for (*place, form), row in rows.items():
        others = [rows.get((*place, other), {}) for other in FORMS]
        if form != "bf16" or not any(others):
            continue
        base, rates = row.get("flops_per_s"), [other.get(key) for key in keys for other in others]
        ratios = [f"{tera(rate)} ({rate / base:.2f})" if rate and base else tera(rate) for rate in rates]
        lines.append([place[0], place[1], number(place[2]), tera(base), *ratios])
    head = ["layer", "kernel", "rows", "bf16", *FORMS, *(f"{form}, GEMM" for form in FORMS if len(keys) > 1)]
    return table(f"{title}: TFLOP/s with quantising (times bf16)", 2, head, lines)


def attention_table(parts: dict) -> list[str]:
    rows = rows_of(parts, "attention")
    names = list(dict.fromkeys(row["name"] for row in rows))
    rates = {(row["name"], row["pass"], row["sequence"]): row.get("flops_per_s") for row in rows}
    places = list(dict.fromkeys((row["sequence"], row["pass"]) for row in rows))
    lines = [[number(seq), word, *(tera(rates.get((name, word, seq))) for name in names)] for seq, word in places]
    return table("Attention, TFLOP/s (causal, counted once)", 2, ["sequence", "pass", *names], lines)


def kernel_table(parts: dict, reached: list[dict]) -> list[str]:
    met_by = {goal["what"]: "yes" if goal["met"] else "no" for goal in reached}
    lines = []
    for row in rows_of(parts, "kernels"):
        times = [number(row.get("bytes"), 1e-6, 1), number(row.get("seconds"), 1e6, 1), number(row.get("host_s"), 1e6, 1)]
        rates = [number(row.get("bytes_per_s"), 1e-12, 3), percent(row.get("share")), met_by.get(row["name"], "")]
        lines.append([row["name"], *times, *rates])
    head = ["kernel", "MB", "us", "host us", "TB/s", "of copy", f"goal {COPY_SHARE_GOAL:.0%}"]
    return table("Memory-bound kernels", 1, head, lines)


def best_of_torch(parts: dict) -> dict:
    """PyTorch's fastest row for each stage and sequence."""
    best = {}
    for row in parts.get("torch", {}).get("rows", []):
        place = row["name"], row["sequence"]
        if "tokens_per_s" in row and row["tokens_per_s"] > best.get(place, {}).get("tokens_per_s", 0):
            best[place] = row
    return best


def stage_tables(parts: dict) -> list[str]:
    best, peak = best_of_torch(parts), parts.get("bench", {}).get("peak_flops") or None
    lines = []
    for row in rows_of(parts, "stages"):
        goal, beside = MFU_GOALS.get(row["sequence"]), best.get((row["name"], row["sequence"]))
        rate = row.get("tokens_per_s")
        cells = [row["name"], number(row["sequence"]), row["recompute"], row["backward"], row["attention"], number(rate)]
        cells += [percent(row.get("mfu")), percent(goal), met_word(parts, row.get("mfu"), goal), number(row.get("peak_bytes"), 1e-9, 1)]
        cells += [number(row.get("host_s"), 1e3, 2), number(row.get("microbatch_s"), 1e3, 2), number(row.get("host_syncs"))]
        lines.append([*cells, number(rate / beside["tokens_per_s"], 1, 2) if rate and beside else ""])
    head = ["stage", "sequence", "recompute", "backward", "attention", "tokens/s", "MFU", "goal", "met", "GB", "host ms", "device ms"]
    torch = []
    for row in parts.get("torch", {}).get("rows", []):
        mfu = row["flops_per_s"] / peak if peak and "flops_per_s" in row else None
        cells = [row["name"], number(row["sequence"]), row["attention"], "yes" if row["compiled"] else "no"]
        cells += [number(row.get("tokens_per_s")), percent(mfu), number(row.get("peak_bytes"), 1e-9, 1)]
        torch.append([*cells, number(row.get("host_s"), 1e3, 2), number(row.get("microbatch_s"), 1e3, 2)])
    torch_head = ["stage", "sequence", "attention", "compiled", "tokens/s", "MFU", "GB", "host ms", "device ms"]
    return (
        table("Stages of Llama 3 8B (4 blocks; last: 2 and the head)", 5, [*head, "syncs", "torch = 1"], lines)
        + table("The same stages in PyTorch, gradients in bf16", 4, torch_head, torch)
    )


# Names of kernels, by what they do; the first that fits counts.
KINDS = {
    "GEMMs": ("gemm", "nvjet", "cutlass", "xmma", "splitk", "aten::mm", "aten::addmm", "aten::bmm"),
    "attention": ("sdpa", "flash", "fmha", "cudnn"),
    "our kernels": ("pptrain",),
}


def kind_of(kernel: str) -> str:
    name = kernel.lower()
    return next((kind for kind, words in KINDS.items() if any(word in name for word in words)), "others")


def profile_tables(parts: dict) -> list[str]:
    """Where a stage's time goes: by kind of kernel, then by kernel."""
    rows = rows_of(parts, "profile")
    kinds, lines = [], []
    for name in dict.fromkeys(row["name"] for row in rows):
        whole, *kernels = [row for row in rows if row["name"] == name]
        sums = {kind: sum(row["share"] for row in kernels if kind_of(row["kernel"]) == kind) for kind in [*KINDS, "others"]}
        cells = [name, number(whole["sequence"]), number(whole.get("microbatch_s"), 1e3, 2), percent(whole.get("share"))]
        kinds.append(cells + [percent(share) for share in sums.values()])
        lines += [[name, row["kernel"][:100], number(row["calls"]), number(row["seconds"], 1e6, 1), percent(row["share"])]
                  for row in kernels if row["share"] >= 0.01]
    head = ["stage", "sequence", "device ms", "in kernels", *KINDS, "others"]
    return (
        table("Where a stage's time goes", 1, head, kinds)
        + table("Kernels with 1 % of a stage's time", 2, ["stage", "kernel", "calls", "us a microbatch", "of time"], lines)
    )


def whole_table(parts: dict) -> list[str]:
    lines = []
    for row in parts.get("whole", {}).get("rows", []):
        cells = [row["name"], number(row["sequence"]), number(row.get("tokens_per_s")), percent(row.get("mfu"))]
        cells += [number(row.get("step_s"), 1, 3), number(row.get("memory_gb"), 1, 1)]
        lines.append([*cells, number(times_bf16(parts, row), 1, 2)])
    head = ["mode", "sequence", "tokens/s", "MFU", "s a step", "GB", "times bf16"]
    return table("A model of 1B trained whole", 1, head, lines)


def failures(parts: dict) -> list[str]:
    """The missing or failed parts, in words."""
    words = [f"{part}: not measured" for part in PARTS if part not in parts]
    for name, section in parts.get("bench", {}).get("sections", {}).items():
        if section["state"] != "done":
            words.append(f"{name}: {section['error']}")
    rows = [(name, row) for name, s in parts.get("bench", {}).get("sections", {}).items() for row in s["rows"]]
    rows += [(part, row) for part in ("torch", "whole") for row in parts.get(part, {}).get("rows", [])]
    if parts.get("whole", {}).get("device") == "cuda":
        measured = [row["name"] for row in parts["whole"]["rows"]]
        words += [f"whole: {mode}: not measured" for mode in MODES if mode not in measured]
    for place, row in rows:
        if "error" in row:
            labels = [str(row[key]) for key in ("name", "kernel", "form", "pass", "rows", "sequence", "attention") if key in row]
            words.append(f"{place}: {' '.join(labels)}: {row['error']}")
    return words


def as_markdown(parts: dict, reached: list[dict]) -> str:
    bench = parts.get("bench", {})
    lines = ["# How fast the parts of a step are", ""]
    if bench:
        lines += [f"- device: {bench['device']}; CUDA {bench['cuda'] or 'none'}; dense bf16 peak {tera(bench['peak_flops'])} TFLOP/s"]
    for row in rows_of(parts, "copy"):
        lines.append(f"- copy from device to device, read and written: {number(row.get('bytes_per_s'), 1e-12, 3)} TB/s")
    if "torch" in parts:
        lines.append(f"- beside it: torch {parts['torch']['torch']}")
    met = f"{sum(goal['met'] for goal in reached)} of {len(reached)}" if reached else "none are set for these sizes"
    lines.append(f"- goals met: {met}")
    lines += [f"- failed: {words}" for words in failures(parts)]
    lines += stage_tables(parts) + profile_tables(parts) + whole_table(parts) + product_tables(parts)
    lines += form_table(parts, "sustained", "FP8 GEMMs, sustained") + form_table(parts, "burst", "FP8 GEMMs in bursts")
    lines += attention_table(parts) + kernel_table(parts, reached)
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for part in PARTS:
        parser.add_argument(f"--{part}", type=Path, help="file of this part; one that is not there counts as missing")
    parser.add_argument("--json", type=Path, required=True, help="file of all figures")
    parser.add_argument("--markdown", type=Path, required=True, help="file of the tables")
    args = parser.parse_args()
    paths = {part: getattr(args, part) for part in PARTS}
    parts = {part: json.loads(path.read_text()) for part, path in paths.items() if path is not None and path.exists()}
    if not parts:
        print("gpu_report.py: error: none of the parts is there", file=sys.stderr)
        return 2
    reached = goals(parts)
    args.json.write_text(json.dumps({"goals": reached, "failures": failures(parts), **parts}, indent=1) + "\n")
    args.markdown.write_text(as_markdown(parts, reached))
    return 0


if __name__ == "__main__":
    sys.exit(main())
