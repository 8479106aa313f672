"""The cost of starting many ranks on this host: seconds until the first step is done, from the last step to the end, peak memory.

    .venv/bin/python scripts/bench/start_times.py threads:128 threads:512 threads:1024 mpi:64 [--markdown]

Each argument is a launcher (threads, mpi or tcp) and a number of ranks. The model is tiny, 4 stages of one layer, and the other
ranks are data-parallel (dp_shard), so the script measures the start, not training: two steps on bytes of this repository's text.
"""

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from busy_host import rank_environments
from contest import ROOT, environment, formatted, machine, set_options

JOB = """[model]
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 2
head_dim = 8
vocab_size = 256
[train]
steps = 2
seq_len = 16
micro_batch_size = 1
grad_accum_steps = 4
dtype = "fp32"
[data]
path = "configs/data/tinyshakespeare.txt"
[optimizer]
lr = 1e-3
[eval]
interval = 0
[checkpoint]
interval = 0
resume = "restart"
[metrics]
peak_tflops = 1
"""
STAGES = 4
TIMEOUT_S = 600


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="LAUNCHER:RANKS")
    parser.add_argument("--pptrain", type=Path, default=ROOT / "build" / "pptrain", help="the executable")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    return parser.parse_args()


def steps_in(folder: Path) -> int:
    try:
        return (folder / "run" / "metrics.jsonl").read_text().count('"step_time_s"')
    except OSError:
        return 0


def measure(pptrain: Path, launcher: str, ranks: int, folder: Path) -> list[str]:
    shutil.rmtree(folder / "run", ignore_errors=True)
    (folder / "job.toml").write_text(JOB)
    stages = min(STAGES, ranks)
    command = [str(pptrain.resolve()), "--config", str(folder / "job.toml")]
    command += set_options({"run.dir": folder / "run", "distributed.pp": stages, "distributed.dp": ranks // stages})
    environments = [environment()]
    if launcher == "mpi":
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), *command]
    elif launcher == "tcp":
        environments = rank_environments(ranks)
    elif launcher != "threads":
        sys.exit(f"{launcher}: threads, mpi or tcp")
    with open(folder / "output", "w+") as output:
        begin = time.monotonic()
        seen = {}  # step: the time when it was first seen
        processes = [subprocess.Popen(command, env=env, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
                     for env in environments]
        while any(process.poll() is None for process in processes):
            seen.setdefault(steps_in(folder), time.monotonic() - begin)
            if time.monotonic() - begin > TIMEOUT_S:
                for process in processes:
                    process.terminate()
            time.sleep(0.02)
        end = time.monotonic() - begin
        seen.setdefault(steps_in(folder), end)
        output.seek(0)
        if any(process.returncode for process in processes) or 1 not in seen and 2 not in seen:
            sys.exit(f"{launcher}:{ranks} failed\n{output.read()[-3000:]}")
    last = seen[max(seen)]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20  # of the largest process so far
    return [launcher, str(ranks), f"{seen.get(1, last):.1f}", f"{end - last:.1f}", f"{peak:.2f}"]


def main() -> None:
    args = arguments()
    rows = [["launcher", "ranks", "until the first step, s", "last step to the end, s", "largest process so far, GiB"]]
    with tempfile.TemporaryDirectory() as name:
        for run in args.runs:
            launcher, _, ranks = run.partition(":")
            rows.append(measure(args.pptrain, launcher, int(ranks), Path(name)))
            print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    print(machine())
    print(formatted(rows, args.markdown))


if __name__ == "__main__":
    main()
