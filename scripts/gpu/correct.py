"""The suite `correct`: kernels, layers and whole runs on this machine's device, in the order of their value."""

import os
import re

import machine
from jobs import check_equal, torchrun_environments, train, train_all, train_processes
from step import Failed, Skipped, Step, Suite

NO_DEVICE = "skipped: no CUDA device"
ALL_PASSED = re.compile(r"All tests passed \((\d+) assertions? in (\d+) test cases?\)")
# Two stages on each rank in the last two: four stages for four layers.
LAYOUTS = {
    "pp2_1f1b": {"distributed__pp": 2},
    "pp4_1f1b": {"distributed__pp": 4},
    "pp2_zbv": {"distributed__pp": 2, "distributed__pp_schedule": "zbv"},
    "pp4_zb_h1": {"distributed__pp": 4, "distributed__pp_schedule": "zb_h1"},
    "pp2_interleaved_1f1b": {"distributed__pp": 2, "distributed__pp_schedule": "interleaved_1f1b",
                             "distributed__pp_stages_per_rank": 2},
}


def beside(context):
    """Jobs at a time: contexts of several processes share a GPU, and start while others run."""
    return max(1, min(3, (os.cpu_count() or 1) // 4)) if context.device == "cuda" else 1


def catch2(context, name, **environment):
    try:
        [text] = context.run(([context.program(name)], environment), name=name)
    except Failed as failure:
        raise Failed(failed_cases(failure.output) or str(failure)) from None
    passed = ALL_PASSED.search(text)
    if not passed or NO_DEVICE in text:
        raise Failed(f"{name} did not run its cases:\n{text[-1000:]}")
    return f"{passed[1]} checks in {passed[2]} cases"


def failed_cases(text):
    """Names of the cases that failed, and the first failure; "" where Catch2 says nothing of that."""
    parts = re.split(r"^-{70,}\n(.*)\n(?:.*\n)*?-{70,}$", text, flags=re.M)
    failures = {name: part for name, part in zip(parts[1::2], parts[2::2]) if "FAILED:" in part}
    if not failures:
        return ""
    first = next(iter(failures.values())).strip().splitlines()
    totals = text.strip().splitlines()[-2:]
    return f"{len(failures)} cases failed: {'; '.join(failures)}\n" + "\n".join(first[:25] + ["..."] + totals)


def kernels(context):
    """All tests for GPUs but that of models, which has a step of its own; test_gpu_kernels first."""
    context.need_gpu()
    others = sorted(path.name for path in (context.pack / "bin").glob("test_gpu_*"))
    others = [name for name in others if name not in ("test_gpu_kernels", "test_gpu_model")]
    return "; ".join(f"{name}: {catch2(context, name)}" for name in ["test_gpu_kernels", *others])


def model(context):
    return catch2(context, "test_gpu_model", **({"PPTRAIN_TEST_DEVICE": "cpu"} if context.device == "cpu" else {}))


def layouts(context):
    reference, *others = train_all(context, {"pp1": {}} | LAYOUTS, beside(context))
    for other in others:
        check_equal(reference, other)
    return equal_bits([reference, *others])


def resume(context):
    """A run that goes on from the middle checkpoint of another, on its layout and on others, ends as it."""
    middle = 3 if context.quick else 10
    whole = train(context, "whole", distributed__pp=2, checkpoint__interval=middle, checkpoint__keep_last_n=0)
    begun = {"checkpoint__resume": whole.folder / f"checkpoints/step_{middle}"}
    resumed = train_all(context, {"resumed_pp2": begun | LAYOUTS["pp2_1f1b"], "resumed_pp1": begun,
                                  "resumed_zbv": begun | LAYOUTS["pp2_zbv"]}, beside(context))
    for other in resumed:
        if min(other.metrics) != middle + 1:
            raise Failed(f"{other.folder.name} began with step {min(other.metrics)}, not {middle + 1}")
        check_equal(whole, other, first_step=middle + 1)
    return f"from step {middle} on, " + equal_bits([whole, *resumed])


def repeat(context):
    count = 3 if context.quick else 10
    runs = train_all(context, {f"run_{i}": LAYOUTS["pp2_zbv"] for i in range(1, count + 1)}, beside(context))
    for other in runs[1:]:
        check_equal(runs[0], other)
    return equal_bits(runs)


def processes(context):
    """Two processes on one GPU: NCCL takes them only where they say that they are on different hosts."""
    nccl = {}
    if context.device == "cuda":
        nccl = {"CUDA_VISIBLE_DEVICES": lambda rank: 0, "PPTRAIN_NCCL_SHARED_GPU": lambda rank: 1,
                "NCCL_HOSTID": lambda rank: f"pptrain-{rank}", "NCCL_SOCKET_IFNAME": lambda rank: "lo",
                "NCCL_IB_DISABLE": lambda rank: 1, "NCCL_DEBUG": lambda rank: "WARN"}
    results = []
    for name, layout in {"pp2": LAYOUTS["pp2_1f1b"], "dp2": {"distributed__dp_replicate": 2}}.items():
        threads = train(context, name + "_threads", **layout)
        results.append(train_processes(context, name + "_processes", torchrun_environments(2, **nccl), **layout))
        check_equal(threads, results[-1])
    return ("NCCL" if nccl else "TCP") + " as thread ranks, pp 2 and dp_replicate 2: " + equal_bits(results)


def sanitizer(context):
    context.need_gpu()
    tool = machine.find_tool("compute-sanitizer")
    if tool is None:
        raise Skipped("no compute-sanitizer on this machine")
    # Each tensor gets memory of its own, so that an access beyond it is seen.
    environment = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    # Libraries' kernels are not ours to judge, and calls by which LibTorch finds out what a driver can do may fail.
    ours = ["--kernel-regex", "kns=pptrain"]
    for check, which in {"memcheck": [], "racecheck": ours, "synccheck": ours}.items():
        options = ["--tool", check, "--report-api-errors", "no", "--error-exitcode", "17", *which]
        [text] = context.run(([tool, *options, context.program("test_gpu_model"), "[small]"], environment), name=check)
        if not ALL_PASSED.search(text) or NO_DEVICE in text or "SUMMARY: 0 " not in text:
            raise Failed(f"{check}: no summary without errors\n{text[-1000:]}")
    return "memcheck of all kernels of a step; racecheck and synccheck of ours"


def equal_bits(results):
    return (f"{len(results)} runs of {len(results[0].metrics)} steps, {len(results[0].checksums)} tensors each: "
            "losses, grad norms and checkpoints equal to the bit")


SUITE = Suite("correct", 230, [
    Step("kernels", "every kernel against the CPU", 90, kernels),
    Step("model", "layers, attention and stages against the CPU in float32", 60, model),
    Step("layouts", "pp 1, 2, 4 and schedules on thread ranks", 60, layouts),
    Step("resume", "from a checkpoint, on three layouts", 40, resume),
    Step("repeat", "one job again and again", 60, repeat),
    Step("processes", "two processes on one device", 60, processes),
    Step("sanitizer", "compute-sanitizer on small shapes", 90, sanitizer),
])
