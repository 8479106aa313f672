"""The predictions of `pptrain plan` for a step against measured steps, on every parallel axis.

    .venv/bin/python scripts/bench/predictions.py [--rounds 3] [--layouts tp ring] [--set lora.rank=16] [--markdown]

The job is llama_bench.toml on two ranks of one thread each, as threads and under mpirun. Each run traces five steps. Then plan predicts
a step from the costs in this trace, and the prediction is compared with the traced steps. So the passes are measured; plan predicts how
they, the exchanges, the norm and the optimizer add up to a step. If something else slows steps down, only the measured side changes: the
spread of a run's steps shows how quiet the machine was.
"""

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from contest import JOB, MICROBATCHES, ROOT, RunFailed, execute, formatted, machine, set_options, write_tokens

FIRST, STEPS = 3, 5  # traced steps
SHARDED = {"distributed.pp": 1, "distributed.dp_shard": 2, "train.grad_accum_steps": MICROBATCHES // 2}
FREED = SHARDED | {"distributed.reshard_after_forward": "true"}
LAYOUTS = {
    "pp": {"distributed.pp": 2},
    "dp_replicate": {"distributed.pp": 1, "distributed.dp_replicate": 2, "train.grad_accum_steps": MICROBATCHES // 2},
    "dp_shard": SHARDED | {"distributed.reshard_after_forward": "false", "distributed.reduce_gradients": "step"},
    "dp_shard_freed": FREED | {"distributed.reduce_gradients": "step"},
    "dp_shard_microbatch": FREED | {"distributed.reduce_gradients": "microbatch"},
    "tp": {"distributed.pp": 1, "distributed.tp": 2},
    "ring": {"distributed.pp": 1, "distributed.cp": 2},
    "ulysses": {"distributed.pp": 1, "distributed.cp": 2, "distributed.cp_kind": "ulysses"},
}
LAUNCHERS = {"threads": [], "mpirun": ["mpirun", "-np", "2", "--bind-to", "none"]}


@dataclass
class Figures:
    predicted: list[float] = field(default_factory=list)  # s, one per run
    measured: list[float] = field(default_factory=list)
    spread: list[float] = field(default_factory=list)  # a run's longest step / its shortest

    def ratio(self) -> float:
        return statistics.median(p / m for p, m in zip(self.predicted, self.measured))


def job_options(settings: dict, folder: Path) -> list[str]:
    settings = settings | {
        "run.dir": folder / "run",
        "data.path": folder / "tokens.bin",
        "train.steps": FIRST + STEPS - 1,
        "profile.trace": "true",
        "profile.first_step": FIRST,
        "profile.steps": STEPS,
        "checkpoint.interval": 0,
        "checkpoint.resume": "restart",
    }
    return ["--config", str(JOB), *set_options(settings)]


def measure(args, launcher: str, settings: dict, folder: Path, figures: Figures) -> None:
    options = job_options(settings, folder) + [word for setting in args.set for word in ("--set", setting)]
    execute([*LAUNCHERS[launcher], str(args.pptrain), *options])
    records = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    steps = [record["step_time_s"] for record in records if "step_time_s" in record][FIRST - 1:]
    trace = str(folder / "run/trace.json")
    report = execute([str(args.pptrain), "plan", *options, "--profile", trace, "--compare", trace])
    predicted, measured = next(line.split()[2:4] for line in report.splitlines() if line.startswith("step, s"))
    figures.predicted.append(float(predicted))
    figures.measured.append(float(measured))
    figures.spread.append(max(steps) / min(steps))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS), help="all of them without it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pptrain", type=Path, default=ROOT / "build/pptrain", help="the executable")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to pptrain")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    args = parser.parse_args()
    args.pptrain = args.pptrain.resolve()
    return args


def main() -> int:
    args = arguments()
    table = {(layout, launcher): Figures() for layout in args.layouts for launcher in LAUNCHERS}
    with tempfile.TemporaryDirectory(prefix="pptrain_predictions_") as name:
        write_tokens(Path(name) / "tokens.bin", FIRST + STEPS - 1)
        for number in range(args.rounds):
            for (layout, launcher), figures in table.items():
                print(f"round {number + 1} of {args.rounds}: {layout}, {launcher}", file=sys.stderr)
                try:
                    measure(args, launcher, LAYOUTS[layout], Path(name), figures)
                except RunFailed as failure:
                    print(f"{layout}, {launcher}: {failure}", file=sys.stderr)
                    return 1
    rows = [["layout", "ranks", "predicted, s", "measured, s", "ratio", "slowest step over fastest"]]
    for (layout, launcher), figures in table.items():
        seconds = (statistics.median(figures.predicted), statistics.median(figures.measured))
        rows.append([layout, launcher, *(f"{value:.2f}" for value in seconds), f"{figures.ratio():.2f}", f"{statistics.median(figures.spread):.2f}"])
    print(machine())
    print(formatted(rows, args.markdown, names=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
