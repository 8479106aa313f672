"""Shared by compare.py and compare_axes.py: running a contender, reading its figures, and tables."""

import argparse
import array
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
JOB = HERE / "llama_bench.toml"
SEQ, MICROBATCHES = 512, 8  # as in llama_bench.toml
TIMEOUT_S = 900


@dataclass(frozen=True)
class Size:
    layers: int
    hidden: int
    ffn: int
    heads: int
    vocab: int

    def pptrain(self) -> dict:
        """Settings of the job."""
        return {
            "model.num_hidden_layers": self.layers,
            "model.hidden_size": self.hidden,
            "model.intermediate_size": self.ffn,
            "model.num_attention_heads": self.heads,
            "model.num_key_value_heads": self.heads,
            "model.vocab_size": self.vocab,
        }

    def torch(self) -> list[str]:
        """Options of the baseline."""
        return [word for name, value in vars(self).items() for word in (f"--{name}", str(value))]


SIZES = {"small": Size(8, 512, 1408, 8, 32000), "wide": Size(4, 1024, 2816, 16, 16000)}  # small: as in llama_bench.toml
# pptrain's instruction sets, and the variables that limit the libraries under torch to them. MKL obeys only on Intel's processors.
ISAS = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "avx512": {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
    "avx512bf16": {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "MKL_ENABLE_INSTRUCTIONS": "AVX512_E2"},
    "amx": {},
}
FLAGS = {"avx2": "avx2", "avx512": "avx512f", "avx512bf16": "avx512_bf16", "amx": "amx_bf16"}  # in /proc/cpuinfo


class RunFailed(Exception):
    pass


@dataclass
class Figures:
    """The figures of one contender's runs."""

    tokens_per_s: list[float] = field(default_factory=list)  # per measured step
    peak_bytes: list[list[int]] = field(default_factory=list)  # per run: one number per process
    failure: str = ""

    def speed(self) -> float:
        return statistics.median(self.tokens_per_s)

    def peak(self) -> int:
        """The sum over all processes."""
        return max(sum(run) for run in self.peak_bytes)


def cpu_facts() -> dict[str, str]:
    facts = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    return facts


def own_isas() -> list[str]:
    """The instruction sets that this processor has, the best one last."""
    flags = cpu_facts().get("flags", "").split()
    return [isa for isa in ISAS if FLAGS[isa] in flags]


def add_program_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pptrain", type=Path, default=ROOT / "build" / "pptrain", help="the executable")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to pptrain")
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown")


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    add_program_arguments(parser)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=2, help="steps of each run that are not measured")
    parser.add_argument("--steps", type=int, default=5, help="measured steps of each run")
    parser.add_argument("--threads", action="store_true", help="time pptrain with its ranks as threads as well")
    parser.add_argument("--compile", action="store_true", help="time torch under torch.compile as well, where it allows it")
    parser.add_argument("--only", choices=("pptrain", "torch"), help="leave the other side out")
    parser.add_argument("--json", type=Path, help="also write all figures here")


def parse_arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    add_common_arguments(parser)
    args = parser.parse_args()
    args.pptrain = args.pptrain.resolve()
    if args.only != "torch" and not args.pptrain.exists():
        sys.exit(f"{args.pptrain} is missing: build it with scripts/build.sh")
    return args


def environment(isa: str = "") -> dict[str, str]:
    """isa: the instruction set for pptrain and torch; "": the processor's best."""
    env = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    if isa:
        env |= ISAS[isa] | {"PPTRAIN_ISA": isa}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    if os.geteuid() == 0:
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return env


def reason(errors: str) -> str:
    """The most useful line of a failed command's errors: the first exception, or the first line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    exceptions = (line for line in lines if re.search(r"\b\w*(Error|Exception): \S", line))
    return next(exceptions, lines[0] if lines else "no message")


def execute(command: list[str], isa: str = "") -> str:
    """Standard output of the command."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=environment(isa), cwd=ROOT, start_new_session=True, **pipes)
    try:
        output, errors = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"no end after {TIMEOUT_S} s") from None
    finally:
        if process.poll() is None:  # too slow, or interrupted: mpirun and torchrun end their ranks on SIGTERM
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate()
    if process.returncode:
        print(f"{' '.join(command)}\n{output[-2000:]}\n{errors[-4000:]}", file=sys.stderr)
        raise RunFailed(f"exit status {process.returncode}: {reason(errors)}")
    return output


def write_tokens(path: Path, steps: int, vocab: int = SIZES["small"].vocab) -> None:
    generator = random.Random(0)
    count = steps * MICROBATCHES * SEQ + 1
    path.write_bytes(array.array("H", (generator.randrange(vocab) for _ in range(count))).tobytes())


def set_options(settings: dict) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def run_pptrain(args, settings: dict, folder: Path, steps: int, processes: int, isa: str = "") -> tuple[list[dict], list[int]]:
    """Returns the records of the run's steps, and each process's peak memory in bytes. settings: with train.dtype. Output: folder / "run"."""
    run_dir, peaks = folder / "run", folder / "peaks"
    shutil.rmtree(run_dir, ignore_errors=True)
    peaks.unlink(missing_ok=True)
    settings = {
        "run.dir": run_dir,
        "data.path": folder / "tokens.bin",
        "train.steps": steps,
    } | settings
    command = [sys.executable, str(HERE / "peak_rss.py"), str(peaks), str(args.pptrain), "--config", str(JOB)]
    command += set_options(settings) + [word for setting in args.set for word in ("--set", setting)]
    if processes > 1:
        command = ["mpirun", "-np", str(processes), "--bind-to", "none", *command]
    execute(command, isa)
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    records = [record for record in records if "tokens_per_s" in record]
    if len(records) != steps:
        raise RunFailed(f"metrics.jsonl has {len(records)} steps where {steps} were asked for")
    return records, [int(line) for line in peaks.read_text().splitlines()]


def run_torch(args, script: str, options: list[str], isa: str = "") -> dict:
    """Returns the baseline's report. options: with --dtype."""
    command = ["torchrun", "--standalone", "--nproc-per-node", "2", str(HERE / script)]
    command += ["--warmup", str(args.warmup), "--steps", str(args.steps), *options]
    return json.loads(execute(command, isa).splitlines()[-1])


def run_round(args, entries: list, run, label: str) -> None:
    """Calls run(contender) for each that has not failed. A contender has a name() and figures."""
    for contender in entries:
        if contender.figures.failure:
            continue
        try:
            run(contender)
            outcome = f"{statistics.median(contender.figures.tokens_per_s[-args.steps :]):.0f} tokens/s"
        except RunFailed as error:
            contender.figures.failure = str(error)
            outcome = f"failed: {error}"
        print(f"{label}: {contender.name()}: {outcome}", file=sys.stderr, flush=True)


def machine() -> str:
    facts = cpu_facts()
    total = next(int(x.split()[1]) for x in Path("/proc/meminfo").read_text().splitlines() if x.startswith("MemTotal"))
    model = f"{facts.get('model name', 'unknown CPU')} (family {facts.get('cpu family')}, model {facts.get('model')})"
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, {' '.join(own_isas())}, {total / 2**20:.0f} GiB, load {os.getloadavg()[0]:.1f}"


def formatted(rows: list[list[str]], markdown: bool, names: int = 1) -> str:
    """A table. Its first `names` columns are words, the others are figures."""
    if markdown:
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([lines[0], "|---" * names + "|---:" * (len(rows[0]) - names) + "|", *lines[1:]])
    widths = [max(map(len, column)) for column in zip(*rows)]
    aligned = [[str.ljust] * names + [str.rjust] * (len(row) - names) for row in rows]
    return "\n".join(
        "  ".join(align(cell, width) for align, cell, width in zip(how, row, widths)).rstrip() for how, row in zip(aligned, rows)
    )


def spread(entries: list) -> str:
    relative = [speed / c.figures.speed() - 1 for c in entries for speed in c.figures.tokens_per_s]
    return f"single steps lie between {min(relative):+.0%} and {max(relative):+.0%} of their contender's median"
