"""The suite `bench`: how fast the device computes. Figures go into files of their own beside the report."""

import os
import shutil
import sys

import machine
from step import Skipped, Step, Suite


def options(context):
    """Sizes: a CPU, or a quick run, takes small ones, whose figures say nothing."""
    small = ["--small"] if context.quick or context.device == "cpu" else []
    return ["--device", context.device, *small]


def script(context, name):
    path = context.pack / "scripts/bench" / name
    if not path.exists():
        raise Skipped(f"{name} is not in this pack")
    return [sys.executable, "-B", path]


def figures(context, name):
    return context.out / f"{name}.json"


def measure(context, name, command, more=None):
    """Runs command(), which may raise Skipped, with the options that all parts have. Older figures go first."""
    figures(context, name).unlink(missing_ok=True)
    context.run(([*command(), *options(context), "--out", figures(context, name)], more or {}), name=name)
    return f"{name}.json"


def parts(context):
    seconds = ["--seconds", "0.1"] if context.quick else []
    return measure(context, "bench", lambda: [context.program("gpu_bench"), *seconds])


def torch(context):
    eager = ["--eager"] if context.device == "cpu" else []
    if not eager and not any(map(shutil.which, filter(None, (os.environ.get("CC"), "gcc", "cc")))):
        raise Skipped("torch.compile needs a C compiler, and there is none")
    # The pack's libraries are none of Python's business, the driver's are.
    folders = [*filter(os.path.isdir, machine.DRIVER_FOLDERS), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    plain = {"LD_LIBRARY_PATH": ":".join(folders)}
    return measure(context, "torch", lambda: [*script(context, "gpu_torch_stage.py"), *eager], plain)


def whole(context):
    return measure(context, "whole", lambda: [*script(context, "gpu_whole.py"), "--pptrain", context.program("pptrain"),
                                              "--timeout", "80"])


def tables(context):
    measured = [word for name in ("bench", "torch", "whole") for word in (f"--{name}", figures(context, name))]
    targets = ["--json", context.out / "bench_all.json", "--markdown", context.out / "bench.md"]
    context.run(([*script(context, "gpu_report.py"), *measured, *targets], {}), name="tables")
    return "bench.md, bench_all.json"


SUITE = Suite("bench", 410, [
    Step("parts", "products, attention, kernels and stages", 200, parts),
    Step("torch", "the same stages in compiled PyTorch", 150, torch),
    Step("whole", "training of a model of 1B parameters", 170, whole),
    Step("tables", "all figures, with their goals", 20, tables),
])
