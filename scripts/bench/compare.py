"""pptrain beside torch.distributed.pipelining: the same job on the same machine, in turns, in one sitting.

    .venv/bin/python scripts/bench/compare.py [--rounds 3] [--schedule 1F1B] [--dtype bf16] [--compile] [--json FILE]

Each round runs every contender once: pptrain under mpirun (two processes), pptrain with its ranks as threads, and the
baseline under torchrun (two processes, Gloo); eager, and with --compile compiled as well. All run the same model, shapes
and numbers of warm-up and measured steps, one CPU thread a rank. Prints the median tokens/s over all measured steps, the
peak resident memory (of the larger rank, and of all together), and pptrain's ratio to each baseline.
"""

import argparse
import array
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
JOB = HERE / "llama_bench.toml"
# torch.distributed.pipelining's names and ours for the same order of passes.
SCHEDULES = {
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "interleaved_1f1b",
    "InterleavedZeroBubble": "interleaved_zb",
}
VOCAB, SEQ, MICROBATCHES = 32000, 512, 8  # as in llama_bench.toml


@dataclass
class Contender:
    name: str
    kind: str  # mpirun | threads | baseline
    compiled: bool = False
    tokens_per_s: list[float] = field(default_factory=list)
    peak_bytes: list[list[int]] = field(default_factory=list)  # of each run: one number per process
    loss: float = math.nan

    def speed(self) -> float:
        return statistics.median(self.tokens_per_s)

    def peak_of_largest(self) -> int:
        return max(max(run) for run in self.peak_bytes)

    def peak_of_all(self) -> int:
        return max(sum(run) for run in self.peak_bytes)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--schedule", choices=SCHEDULES, default="1F1B", help="of the baseline")
    parser.add_argument("--pptrain-schedule", help="pp_schedule of pptrain; the same one as the baseline's without it")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--warmup", type=int, default=2, help="steps of each run that are not measured")
    parser.add_argument("--steps", type=int, default=5, help="measured steps of each run")
    parser.add_argument("--compile", action="store_true", help="time the baseline under torch.compile as well")
    parser.add_argument("--split", help="layers per stage for both, such as 5,3; even without it")
    parser.add_argument("--only", choices=("pptrain", "baseline"), help="leave the other side out")
    parser.add_argument("--pptrain", type=Path, default=ROOT / "build" / "pptrain", help="the executable")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to pptrain")
    parser.add_argument("--json", type=Path, help="also write all figures here")
    return parser.parse_args()


def environment() -> dict[str, str]:
    env = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    if os.geteuid() == 0:
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return env


def execute(command: list[str]) -> str:
    """Standard output of the command; its last lines and an exit if it fails."""
    run = subprocess.run(command, env=environment(), cwd=ROOT, text=True, capture_output=True)
    if run.returncode:
        sys.exit(f"failed ({run.returncode}): {' '.join(command)}\n{run.stdout[-2000:]}\n{run.stderr[-4000:]}")
    return run.stdout


def write_tokens(path: Path, steps: int) -> None:
    generator = random.Random(0)
    count = steps * MICROBATCHES * SEQ + 1
    path.write_bytes(array.array("H", (generator.randrange(VOCAB) for _ in range(count))).tobytes())


def run_pptrain(args, contender: Contender, folder: Path) -> None:
    run_dir, peaks = folder / "run", folder / "peaks"
    shutil.rmtree(run_dir, ignore_errors=True)
    peaks.unlink(missing_ok=True)
    settings = {
        "run.dir": run_dir,
        "data.path": folder / "tokens.bin",
        "train.steps": args.warmup + args.steps,
        "train.dtype": args.dtype,
        "distributed.pp_schedule": args.pptrain_schedule or SCHEDULES[args.schedule],
    }
    if args.split:
        settings["distributed.pp_split"] = f"[{args.split}]"
    command = [sys.executable, str(HERE / "peak_rss.py"), str(peaks), str(args.pptrain), "--config", str(JOB)]
    for setting in [f"{key}={value}" for key, value in settings.items()] + args.set:
        command += ["--set", setting]
    if contender.kind == "mpirun":
        command = ["mpirun", "-np", "2", "--bind-to", "none", *command]
    execute(command)
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if "tokens_per_s" in record][args.warmup :]
    if len(steps) != args.steps:
        sys.exit(f"{run_dir / 'metrics.jsonl'}: {len(steps)} measured steps where {args.steps} were asked for")
    contender.tokens_per_s += [step["tokens_per_s"] for step in steps]
    contender.loss = steps[-1]["loss"]
    contender.peak_bytes.append([int(line) for line in peaks.read_text().splitlines()])


def run_baseline(args, contender: Contender, folder: Path) -> None:
    command = ["torchrun", "--nproc-per-node", "2", str(HERE / "pipelining_baseline.py"), "--schedule", args.schedule]
    command += ["--dtype", args.dtype, "--warmup", str(args.warmup), "--steps", str(args.steps)]
    command += ["--split", args.split] if args.split else []
    command += ["--compile"] if contender.compiled else []
    report = json.loads(execute(command).splitlines()[-1])
    contender.tokens_per_s += report["all_tokens_per_s"]
    contender.loss = report["loss"]
    contender.peak_bytes.append(report["peak_bytes"])


def machine() -> str:
    facts = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    features = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in facts.get("flags", "").split()]
    total = next(int(x.split()[1]) for x in Path("/proc/meminfo").read_text().splitlines() if x.startswith("MemTotal"))
    model = f"{facts.get('model name', 'unknown CPU')} (family {facts.get('cpu family')}, model {facts.get('model')})"
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, {' '.join(features)}, {total / 2**20:.0f} GiB, load {os.getloadavg()[0]:.1f}"


def contenders(args) -> list[Contender]:
    ours = [Contender("pptrain, mpirun", "mpirun"), Contender("pptrain, threads", "threads")]
    theirs = [Contender("torch, eager", "baseline")]
    if args.compile:
        theirs.append(Contender("torch, compiled", "baseline", compiled=True))
    return {"pptrain": ours, "baseline": theirs, None: ours + theirs}[args.only]


def report(args, entries: list[Contender], name: str) -> None:
    import torch  # only for its version

    gib = 2**30
    print(f"machine: {name}")
    print(f"job: {JOB.name}, {args.dtype}, {args.schedule}, split {args.split or 'even'}, torch {torch.__version__},")
    print(f"     {args.rounds} rounds of {args.steps} steps after {args.warmup} to warm up\n")
    print(f"{'':18} {'tokens/s':>9} {'lowest':>8} {'highest':>8} {'largest rank':>13} {'all ranks':>11} {'loss':>8}")
    for c in entries:
        print(
            f"{c.name:18} {c.speed():9.0f} {min(c.tokens_per_s):8.0f} {max(c.tokens_per_s):8.0f}"
            f" {c.peak_of_largest() / gib:9.2f} GiB {c.peak_of_all() / gib:7.2f} GiB {c.loss:8.4f}"
        )
    print()
    for ours in (c for c in entries if c.kind != "baseline"):
        for theirs in (c for c in entries if c.kind == "baseline"):
            memory = f"{ours.peak_of_all() / theirs.peak_of_all():.2f}x of its memory in all"
            if ours.kind == "mpirun":
                memory += f", {ours.peak_of_largest() / theirs.peak_of_largest():.2f}x on the largest rank"
            print(f"{ours.name} against {theirs.name}: {ours.speed() / theirs.speed():.2f}x its tokens/s, {memory}")


def main() -> None:
    args = parse_arguments()
    if args.only != "baseline" and not args.pptrain.exists():
        sys.exit(f"{args.pptrain} is missing: build it with scripts/build.sh")
    entries, name = contenders(args), machine()
    with tempfile.TemporaryDirectory(prefix="pptrain-bench-") as temporary:
        folder = Path(temporary)
        write_tokens(folder / "tokens.bin", args.warmup + args.steps)
        for turn in range(args.rounds):
            for contender in entries:
                run = run_baseline if contender.kind == "baseline" else run_pptrain
                run(args, contender, folder)
                measured = statistics.median(contender.tokens_per_s[-args.steps :])
                print(f"round {turn + 1}: {contender.name} {measured:.0f} tokens/s", file=sys.stderr, flush=True)
    report(args, entries, name)
    if args.json:
        args.json.write_text(json.dumps({"machine": name, "runs": [vars(c) for c in entries]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
