"""The suite `correct`: kernels, layers and whole runs on this machine's device, in the order of their value."""

import os
import re
from concurrent.futures import ThreadPoolExecutor

import machine
from jobs import check_all, check_equal, torchrun_environments, train, train_all, train_processes
from step import Failed, NotRun, Parts, Step, Suite

NO_DEVICE = "skipped: no CUDA device"
# CUDA's message to every later call in a process in which a kernel has failed.
DEVICE_LOST = re.compile(r"CUDA error|CUDA_ERROR|cudaError|illegal memory access|misaligned address|unspecified launch failure")
ALL_PASSED = re.compile(r"All tests passed \((\d+) assertions? in (\d+) test cases?\)")
# zbv and interleaved_1f1b have two stages on each rank: four stages for four layers.
LAYOUTS = {
    "pp2_1f1b": {"distributed__pp": 2},
    "pp4_1f1b": {"distributed__pp": 4},
    "pp2_zbv": {"distributed__pp": 2, "distributed__pp_schedule": "zbv"},
    "pp4_zb_h1": {"distributed__pp": 4, "distributed__pp_schedule": "zb_h1"},
    "pp2_interleaved_1f1b": {"distributed__pp": 2, "distributed__pp_schedule": "interleaved_1f1b",
                             "distributed__pp_stages_per_rank": 2},
}
# Layouts of one job each that must agree among themselves.
SPREAD = {"distributed__pp": 2, "distributed__pp_head": "spread", "distributed__pp_sequence_slices": 2, "model__tie_word_embeddings": "true",
          "eval__generate_interval": 3, "eval__generate_tokens": 4}
EXPERTS = {"model__arch": "qwen3_moe", "model__num_experts": 8, "model__num_experts_per_tok": 2, "model__moe_intermediate_size": 128,
           "distributed__dp_shard": 2, "distributed__ep": 2, "distributed__pp": 2}
LATENT = {"model__arch": "deepseek_v3", "model__num_experts": 8, "model__num_experts_per_tok": 2, "model__moe_intermediate_size": 128,
          "model__shared_expert_intermediate_size": 128, "model__n_group": 4, "model__topk_group": 2, "model__q_lora_rank": 96,
          "model__kv_lora_rank": 64, "model__qk_nope_head_dim": 32, "model__qk_rope_head_dim": 32, "model__v_head_dim": 64}
FEATURES = {
    "a head over the pipeline": {
        "spread_1f1b": SPREAD,
        "spread_zbv": SPREAD | {"distributed__pp_schedule": "zbv"}},
    "experts in pairs of passes": {
        "experts_zbv": EXPERTS | {"distributed__pp_schedule": "zbv"},
        "experts_dualpipe_v": EXPERTS | {"distributed__pp_schedule": "dualpipe_v"}},
    "sequence slices": {
        "slices_pp1": {"distributed__pp_sequence_slices": 2},
        "slices_zbv": LAYOUTS["pp2_zbv"] | {"distributed__pp_sequence_slices": 2}},
    "latent attention": {
        "latent_pp1": LATENT,
        "latent_zbv": LATENT | LAYOUTS["pp2_zbv"]},
    "FP8": {
        "fp8_pp1": {"train__fp8": "rowwise"},
        "fp8_zbv": LAYOUTS["pp2_zbv"] | {"train__fp8": "rowwise"}},
}


def beside(context):
    """The number of jobs at a time: several processes share a GPU, and some start while others run."""
    return max(1, min(3, (os.cpu_count() or 1) // 4)) if context.device == "cuda" else 1


def catch2(context, name, **environment):
    """Runs all cases of a test program. If one of them may have spoilt the others, then runs each case by itself."""
    program = context.program(name)
    try:
        # Prints the time of each case, so that the log shows how far a stopped program came.
        [text] = context.run(([program, "--durations", "yes"], environment), name=name)
    except Failed as failure:
        words = failed_cases(failure.output)
        lost = context.left() > 1 and (not words or DEVICE_LOST.search(failure.output))
        raise Failed("\n".join([words or str(failure), *([alone(context, program, environment)] if lost else [])])) from None
    passed = ALL_PASSED.search(text)
    if not passed or NO_DEVICE in text:
        raise Failed(f"{name} did not run its cases:\n{text[-1000:]}")
    return f"{name}: {passed[1]} checks in {passed[2]} cases"


def alone(context, program, environment):
    """After an error that makes the device unusable for the rest of a process: the cases that fail in their own process."""
    try:
        [names] = context.run(([program, "--list-test-names-only"], environment), name="list of cases")
    except Failed as listed:  # Catch2 2 ends with the number of cases
        names = listed.output
    outcomes = {"fail": [], "pass": [], "had no time": []}

    def one(name):
        try:
            context.run(([program, re.sub(r'([\\,\[\]"])', r"\\\1", name)], environment), name=name)
            outcomes["pass"].append(name)
        except Failed:
            outcomes["fail" if context.left() > 0 else "had no time"].append(name)

    with ThreadPoolExecutor(2 * beside(context)) as pool:
        list(pool.map(one, filter(None, names.splitlines())))
    return "each case by itself: " + "; ".join(f"{len(cases)} {kind}{': ' + ', '.join(cases) if cases and kind != 'pass' else ''}"
                                               for kind, cases in outcomes.items())


def failed_cases(text):
    """Names of the failed cases, and the first failure; "" if Catch2 reports none."""
    parts = re.split(r"^-{70,}\n(.*)\n(?:.*\n)*?-{70,}$", text, flags=re.M)
    failures = {name: part for name, part in zip(parts[1::2], parts[2::2]) if "FAILED:" in part}
    if not failures:
        return ""
    first = next(iter(failures.values())).strip().splitlines()
    totals = text.strip().splitlines()[-2:]
    return f"{len(failures)} cases failed: {'; '.join(failures)}\n" + "\n".join(first[:25] + ["..."] + totals)


def kernels(context):
    context.need_gpu()
    return catch2(context, "test_gpu_kernels")


def others(context):
    """All tests for GPUs except kernels and models, which have their own steps."""
    context.need_gpu()
    parts, words = Parts(), []
    names = sorted(path.name for path in (context.pack / "bin").glob("test_gpu_*"))
    for name in (name for name in names if name not in ("test_gpu_kernels", "test_gpu_model")):
        with parts.part(name):
            words.append(catch2(context, name))
    parts.check()
    if not words:
        raise NotRun("no other test_gpu_* is in this pack")
    return "; ".join(words)


def model(context):
    return catch2(context, "test_gpu_model", **({"PPTRAIN_TEST_DEVICE": "cpu"} if context.device == "cpu" else {}))


def agreeing(context, jobs):
    """Runs all of these jobs; each must equal the first one that ended well."""
    parts = Parts()
    results = train_all(context, parts, jobs, beside(context))
    check_all(parts, results[0] if results else None, results[1:])
    return equal_bits(results)


def layouts(context):
    return agreeing(context, {"pp1": {}} | LAYOUTS)


def features(context):
    """Rare models and layouts, each group by itself."""
    parts, words = Parts(), []
    for name, jobs in FEATURES.items():
        with parts.part(name):
            words.append(f"{name}: {agreeing(context, jobs)}")
    parts.check()
    return "; ".join(words)


def resume(context):
    """A run resumed from another run's middle checkpoint, on its layout and on others, ends with the same numbers."""
    middle = 3 if context.quick else 10
    whole = train(context, "whole", distributed__pp=2, checkpoint__interval=middle, checkpoint__keep_last_n=0)
    begun = {"checkpoint__resume": whole.folder / f"checkpoints/step_{middle}"}
    parts = Parts()
    resumed = train_all(context, parts, {"resumed_pp2": begun | LAYOUTS["pp2_1f1b"], "resumed_pp1": begun,
                                         "resumed_zbv": begun | LAYOUTS["pp2_zbv"]}, beside(context))
    check_all(parts, whole, resumed, first_step=middle + 1)
    return f"from step {middle} on, " + equal_bits([whole, *resumed])


def repeat(context):
    count = 3 if context.quick else 10
    return agreeing(context, {f"run_{i}": LAYOUTS["pp2_zbv"] for i in range(1, count + 1)})


def processes(context):
    """Processes on one GPU: NCCL accepts them only if they claim to be on different hosts."""
    nccl = {}
    if context.device == "cuda":
        nccl = {"CUDA_VISIBLE_DEVICES": lambda rank: 0, "PPTRAIN_NCCL_SHARED_GPU": lambda rank: 1,
                "NCCL_HOSTID": lambda rank: f"pptrain-{rank}", "NCCL_SOCKET_IFNAME": lambda rank: "lo",
                "NCCL_IB_DISABLE": lambda rank: 1, "NCCL_DEBUG": lambda rank: "WARN"}
    parts, results = Parts(), []
    jobs = {"pp2": (2, LAYOUTS["pp2_1f1b"]), "dp2": (2, {"distributed__dp_replicate": 2}),
            "pp2_ep2": (4, FEATURES["experts in pairs of passes"]["experts_dualpipe_v"])}
    for name, (ranks, layout) in jobs.items():
        layout = layout if ranks == 2 else layout | {"train__steps": 6}  # half a second each
        with parts.part(name):
            threads = train(context, name + "_threads", **layout)
        # Messages go through memory that processes share, then through NCCL.
        links = {"shared": {}, "nccl": {"PPTRAIN_GPU_LINKS": lambda rank: "nccl"}} if nccl and name != "dp2" else {"only": {}}
        for way, extra in links.items():
            with parts.part(f"{name}_{way}"):
                results.append(train_processes(context, f"{name}_{way}", torchrun_environments(ranks, **nccl, **extra), **layout))
                check_equal(threads, results[-1])
    parts.check()
    return ("NCCL" if nccl else "TCP") + " as thread ranks, pp 2, dp_replicate 2, pp 2 with ep 2 under dualpipe_v: " + equal_bits(results)


def sanitizer(context):
    context.need_gpu()
    tool = machine.find_tool("compute-sanitizer")
    if tool is None:
        raise NotRun("compute-sanitizer is not on this machine (CUDA's toolkit has it, and the PyPI package nvidia-cuda-sanitizer-api)")
    # Each tensor gets memory of its own, so that an access beyond it is seen.
    environment = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    # The check skips libraries' kernels. Calls with which LibTorch probes the driver may fail.
    ours = ["--kernel-name", "kns=pptrain"]
    small = [context.program("test_gpu_model"), "[small]"]
    # racecheck itself fails if cuBLAS runs on Hopper, even outside its filter (compute-sanitizer 2025.3).
    checks = {"memcheck": ([], small), "synccheck": (ours, small), "racecheck": (ours, [context.program("test_gpu_kernels"), "~[gemm]"])}
    parts = Parts()
    for left, (check, (which, program)) in zip((3, 2, 1), checks.items()):
        with parts.part(check):
            options = ["--tool", check, "--report-api-errors", "no", "--error-exitcode", "17", *which]
            [text] = context.run(([tool, *options, *program], environment), name=check, timeout=context.left() / left)
            if not ALL_PASSED.search(text) or NO_DEVICE in text or "SUMMARY: 0 " not in text:
                raise Failed(f"no summary without errors\n{text[-1000:]}")
    parts.check()
    return "memcheck of all kernels of a step, synccheck of ours; racecheck of every kernel of ours"


def equal_bits(results):
    return (f"{len(results)} runs of {len(results[0].metrics)} steps, {len(results[0].checksums)} tensors each: "
            "losses, grad norms and checkpoints equal to the bit")


# Limits: the seconds that each step is sure to have. Later steps get the seconds that a step does not use.
SUITE = Suite("correct", [
    Step("kernels", "every kernel against the CPU", 15, kernels,
         "The case's name says the kernel: core/kernels/cuda. Repair it first: all other steps use it."),
    Step("model", "layers, attention and stages against the CPU in float32", 30, model,
         "Where `kernels` passed, suspect attention (core/attention) and products (gemm.cu) at these shapes."),
    Step("layouts", "pp 1, 2, 4 and schedules on thread ranks", 20, layouts,
         "The first step that differs: in step 1 the loss is a forward pass, the grad norm a backward one; later ones the optimizer. "
         "Where one layout alone differs, look for an event that is missing between streams (parallel/pipeline)."),
    Step("processes", "two and four processes on one device", 80, processes,
         "NCCL's own words are in the log (NCCL_DEBUG=WARN). Where `layouts` passed, the fault is in parallel/comm/nccl or the start."),
    Step("attention", "every other test for GPUs", 30, others,
         "A back end that refuses a shape says so in the case; `train.deterministic` chooses between back ends."),
    Step("repeat", "one job again and again", 25, repeat,
         "Runs that differ have a race or an atomic sum: compare their first differing step, then run `sanitizer`."),
    Step("features", "a spread head, dualpipe_v with experts, sequence slices, latent attention", 30, features,
         "Each group has a first job alone: where that one fails, the model does; where the second differs, its schedule."),
    Step("resume", "from a checkpoint, on three layouts", 20, resume,
         "Where `layouts` passed, what a checkpoint holds is not all of the state: parallel/checkpoint."),
    Step("sanitizer", "compute-sanitizer on small shapes", 50, sanitizer,
         "Each report names the kernel, block and thread. Where time was short: --patience 4.", last=True),
])
