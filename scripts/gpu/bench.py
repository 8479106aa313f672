"""The suite `bench`: how fast the device computes; figures go into steps.log."""

from step import Step, Suite


def gpu_bench(context):
    context.need_gpu()
    [text] = context.run(([context.program("gpu_bench")], {}), name="gpu_bench")
    return f"{len(text.splitlines())} lines in steps.log"


SUITE = Suite("bench", 410, [Step("gpu_bench", "the benchmark program", 400, gpu_bench)])
