"""The suite `bench`: how fast the device computes. Figures go into files next to the report, tables and goals into it."""

import json
import os
import shutil
import sys

import machine
from step import Failed, NotRun, Step, Suite

FILES = ("bench", "torch", "whole")  # gpu_report.py merges these


def options(context):
    """Sizes: a CPU or a quick run takes small ones; their figures have no meaning."""
    small = ["--small"] if context.quick or context.device == "cpu" else []
    return ["--device", context.device, *small]


def script(context, name):
    path = context.pack / "scripts/bench" / name
    if not path.exists():
        raise NotRun(f"{name} is not in this pack")
    return [sys.executable, "-B", path]


def figures(context, name):
    return context.out / f"{name}.json"


def begin(context):
    """Removes the figures of an earlier run, so that they are never reported."""
    if "begun" not in context.figures:
        for name in (*FILES, "bench_all"):
            figures(context, name).unlink(missing_ok=True)
        context.figures["begun"] = True


def measure(context, name, command, more=None, into=None):
    """Runs a command that writes figures to a file as they come, so that a failed or stopped command leaves some."""
    try:
        context.run(([*command, *options(context), "--out", into or figures(context, name)], more or {}), name=name)
    finally:
        if into is not None and into.exists():
            merge(context, into)
        tables(context)
    return f"{name}.json"


def merge(context, path):
    """Merges the sections of a gpu_bench file into the present ones."""
    whole, part = figures(context, "bench"), json.loads(path.read_text())
    if whole.exists():
        part["sections"] = json.loads(whole.read_text())["sections"] | part["sections"]
    whole.write_text(json.dumps(part, indent=1) + "\n")


def tables(context):
    """All figures so far, with their goals, for the report."""
    command = script(context, "gpu_report.py")
    there = [name for name in FILES if figures(context, name).exists()]
    if not there:
        return
    measured = [word for name in there for word in (f"--{name}", figures(context, name))]
    page = context.work / "bench.md"
    context.run(([*command, *measured, "--json", figures(context, "bench_all"), "--markdown", page], {}), name="tables", spare=True)
    context.figures |= {"goals": json.loads(figures(context, "bench_all").read_text())["goals"], "text": "\n" + page.read_text()}


def sections(context, names):
    begin(context)
    seconds = ["--seconds", "0.1"] if context.quick else []
    command = [context.program("gpu_bench"), "--sections", names, *seconds]
    return measure(context, "bench", command, into=context.work / f"bench_{names.replace(',', '_')}.json")


def stages(context):
    return sections(context, "stages,profile")


def parts(context):
    return sections(context, "copy,products,attention,kernels")


def torch(context):
    begin(context)
    eager = ["--eager"] if context.device == "cpu" else []
    if not eager and not any(map(shutil.which, filter(None, (os.environ.get("CC"), "gcc", "cc")))):
        raise NotRun("torch.compile needs a C compiler, and there is none")
    # Python needs the driver's libraries, but not the pack's.
    folders = [*filter(os.path.isdir, machine.DRIVER_FOLDERS), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    plain = {"LD_LIBRARY_PATH": ":".join(folders)}
    return measure(context, "torch", [*script(context, "gpu_torch_stage.py"), *eager], plain)


def whole(context):
    begin(context)
    # Three modes (gpu_report.MODES): if one hangs, the others still have their time.
    command = [*script(context, "gpu_whole.py"), "--pptrain", context.program("pptrain"), "--timeout", f"{0.31 * context.left():.0f}"]
    return measure(context, "whole", [*command, "--steps", "10", "--warmup", "3"])


# Limits as in correct.py. The steps' figures are in bench.json, torch.json and whole.json; all of them in bench_all.json.
SUITE = Suite("bench", [
    Step("stages", "the MFU of stages of Llama 3 8B", 110, stages,
         "A row's own `error` is in bench.json. Out of memory: look at `peak_bytes` of the rows before it."),
    Step("parts", "copy, GEMMs, attention by back end, memory-bound kernels", 130, parts,
         "A row's own `error` is in bench.json. The same kernel on small shapes: step `kernels` of `correct`."),
    Step("whole", "training of a model of 1B parameters: train.deterministic on and off, train.fp8", 150, whole,
         "The end of the program's output is in whole.json. A run by itself: python3 scripts/bench/gpu_whole.py --help"),
    Step("torch", "the same stages in compiled PyTorch", 110, torch,
         "It is what we are compared with: nothing of ours fails here. A missing C compiler or Triton ends it."),
])
