"""Steps over slow links against the predictions of `pptrain plan`: this host imitates two hosts.

    sudo python3 scripts/bench/slow_links.py [--jobs default bench] [--layouts pp tp ep] [--gbps 10 1 0.1] [--rounds 3]
        [--ranks-per-host 1] [--pptrain BUILD OTHER_BUILD] [--set train.dtype=fp32] [--markdown]

Each host is a network namespace with its own name and core, on a bridge. `tc` limits its traffic in both directions; Open MPI
uses only TCP between hosts. With several ranks on a host, they share its core, and layouts have so many times more data ranks.
`pptrain doctor` first measures the link. Then every layout runs over the unlimited link, with a trace, and over each slow one; plan
predicts these steps from this trace and from doctor's link. Figures are medians of all rounds. "sent" is what a host sends in a step.
The links have the machine's own latency (some 10 us); --latency-us adds to it if the kernel has netem. Needs root and iproute2;
otherwise the script ends with status 2.
"""

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from contest import JOB, MICROBATCHES, ROOT, RunFailed, execute, formatted, machine, set_options, write_tokens
from predictions import LAYOUTS as EVEN_LAYOUTS
from predictions import SHARDED

FIRST = 2  # first measured step
LONGEST_S = 30  # limit for a run's measured steps, if two of them take less
UNLIMITED = 0.0  # Gb/s
NETWORK = "10.77.0"
EXPERTS = {"model.arch": "qwen3_moe", "model.num_experts": 8, "model.num_experts_per_tok": 2, "model.moe_intermediate_size": 512}
LAYOUTS = EVEN_LAYOUTS | {
    "pp_auto": EVEN_LAYOUTS["pp"] | {"distributed.pp_schedule": "auto"},
    "ep": SHARDED | EXPERTS | {"distributed.ep": 2, "distributed.reshard_after_forward": "false"},
}
LAYOUTS["hybrid"] = LAYOUTS["dp_replicate"] | {"distributed.dp_shard": 1}
WITHIN_HOST = {"dp_replicate": "dp_replicate", "dp_shard": "dp_shard", "hybrid": "dp_shard"}  # where --ranks-per-host adds ranks
LAYOUTS["ep_pairs"] = LAYOUTS["ep"] | {"distributed.pp_schedule": "dualpipe_v"}


@dataclass(frozen=True)
class Job:
    path: Path
    steps: int  # measured steps, at most
    settings: dict


FOUR_HEADS = {"model.num_attention_heads": 4, "model.num_key_value_heads": 4}  # two tp ranks halve them
JOBS = {
    "default": Job(ROOT / "configs/shakespeare.toml", 20, FOUR_HEADS | {"eval.interval": 0}),
    "bench": Job(JOB, 4, {}),
}


def layout_of(name: str, ranks_per_host: int) -> dict:
    """The layout of two ranks, with so many times more data ranks."""
    settings = dict(LAYOUTS[name])
    if ranks_per_host > 1:
        settings[f"distributed.{WITHIN_HOST[name]}"] *= ranks_per_host
        settings["train.grad_accum_steps"] //= ranks_per_host
    return settings


class Hosts:
    """Namespaces pptrain1, pptrain2, ... while the context lasts, one for each host."""

    def __init__(self, count: int, ranks: int, latency_us: float, folder: Path):
        self.numbers = range(1, count + 1)
        self.ranks = ranks  # of a host
        self.latency_us = latency_us
        self.agent = folder / "agent"
        cores = sorted(os.sched_getaffinity(0))
        pick = " ".join(str(cores[i % len(cores)]) for i in range(count))
        # Starts mpirun's command on a host; the host's address ends in its number.
        self.agent.write_text(
            f'#!/bin/sh\nnumber=${{1##*.}}\nshift\nset -- "$*" {pick}\ncommand=$1\nshift $number\n'
            'exec ip netns exec pptrain$number unshare --uts taskset -c $1 sh -c "hostname host$number; $command"\n'
        )
        self.agent.chmod(0o755)

    def __enter__(self):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        self.__exit__()  # removes the leftovers of a killed script
        return self

    def start(self) -> None:
        sh(f"ip link add pptrain0 type bridge && ip address add {NETWORK}.254/24 dev pptrain0 && ip link set pptrain0 up")
        for i in self.numbers:
            sh(f"ip netns add pptrain{i} && ip link add pptrain{i} type veth peer name eth0 netns pptrain{i}")
            sh(f"ip link set pptrain{i} master pptrain0 up && ip -n pptrain{i} address add {NETWORK}.{i}/24 dev eth0")
            sh(f"ip -n pptrain{i} link set lo up && ip -n pptrain{i} link set eth0 up")
        self.limit(1)

    def __exit__(self, *_):
        for i in self.numbers:
            for pid in subprocess.run(["ip", "netns", "pids", f"pptrain{i}"], capture_output=True, text=True).stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", f"pptrain{i}"], capture_output=True)
        subprocess.run(["ip", "link", "delete", "pptrain0"], capture_output=True)

    def limit(self, gbps: float) -> None:
        """Limits every link each way. Bursts of 0.25 ms: longer ones would make messages faster than the link."""
        burst = int(max(16384, min(gbps * 1e9 / 8 * 250e-6, 262144)))
        for i in self.numbers:
            for where, device in ((f"tc -n pptrain{i}", "eth0"), ("tc", f"pptrain{i}")):
                subprocess.run(f"{where} qdisc delete dev {device} root", shell=True, capture_output=True)
                if gbps:
                    sh(f"{where} qdisc add dev {device} root handle 1: tbf rate {gbps}gbit burst {burst} limit 16mb")
            if self.latency_us:
                parent = "parent 1: handle 2:" if gbps else "root"
                sh(f"tc -n pptrain{i} qdisc add dev eth0 {parent} netem delay {self.latency_us}us limit 100000")
            sh(f"ip -n pptrain{i} link set eth0 gso_max_size {min(burst // 2, 65536) if gbps else 65536}")

    def sent(self) -> float:
        """Bytes that the first host has sent to the bridge."""
        return float(Path("/sys/class/net/pptrain1/statistics/rx_bytes").read_text())

    def mpirun(self, command: list[str], ranks: int, any_status: bool = False) -> str:
        """`ranks`: of each host."""
        options = {"plm_rsh_agent": self.agent, "pml": "ob1", "btl": "tcp,self" + ",vader" * (ranks > 1)}
        options |= {f"{layer}_tcp_if_include": f"{NETWORK}.0/24" for layer in ("btl", "oob")}
        words = ["mpirun", "-np", str(len(self.numbers) * ranks), "--map-by", f"ppr:{ranks}:node", "--bind-to", "none"]
        words += ["--host", ",".join(f"{NETWORK}.{i}:{ranks}" for i in self.numbers)]
        words += [word for name, value in options.items() for word in ("--mca", name, str(value))]
        return execute((["sh", "-c", '"$@" || true', "sh"] if any_status else []) + words + command)


@dataclass
class Figures:
    measured: list[float] = field(default_factory=list)  # s, one per round
    predicted: list[float] = field(default_factory=list)
    speed: list[float] = field(default_factory=list)  # relative to the unlimited link
    sent: list[float] = field(default_factory=list)  # bytes a step, of a host


@dataclass(frozen=True)
class Link:
    gbps: float  # rate at which MPI moves an activation
    latency_us: float

    def settings(self, ranks: int) -> dict:
        """Ranks of a host share its link."""
        return {
            "distributed.ranks_per_host": ranks,
            "distributed.host_link_gbps": self.gbps / ranks,
            "distributed.host_latency_us": self.latency_us,
        }


def sh(command: str) -> None:
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    if done.returncode:
        raise RunFailed(f"{command}: {done.stderr.strip() or done.returncode}")


class Bench:
    def __init__(self, args, folder: Path, hosts: Hosts):
        self.args, self.folder, self.hosts = args, folder, hosts
        self.links = {}  # [job, gbps]: list of doctor's results
        self.table = {}  # [program, job, layout, gbps]: Figures

    def options(self, job: str, settings: dict) -> list[str]:
        data = {"data.path": self.folder / "tokens.bin"} if JOBS[job].path == JOB else {}
        settings = {"run.dir": self.folder / "run", "metrics.log_interval": 1} | data | JOBS[job].settings | settings
        return ["--config", str(JOBS[job].path), *set_options(settings), *(word for text in self.args.set for word in ("--set", text))]

    def find_link(self, program: Path, job: str, gbps: float) -> Link:
        text = self.hosts.mpirun([str(program), "doctor", *self.options(job, {})], ranks=1, any_status=True)
        found = re.search(r"links .*: (\d+) us, (\S+) Gb/s; .* MB takes (\S+) ms, a forward", text)
        if not found:
            raise RunFailed(f"doctor says nothing of the link:\n{text}")
        short_ms, rate, long_ms = int(found[1]) / 1e3, float(found[2]), float(found[3])
        link = Link(rate * long_ms / max(long_ms - short_ms, long_ms / 2), max(1, 1e3 * short_ms))
        self.links.setdefault((job, gbps), []).append(link)
        return link

    def run(self, program: Path, job: str, settings: dict, steps: int) -> tuple[float, float]:
        """The median seconds of the measured steps, and the bytes that a host sends in a step."""
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        trace = {"profile.trace": "true", "profile.first_step": FIRST, "profile.steps": steps}
        ending = {"train.steps": FIRST + steps - 1, "checkpoint.interval": 0, "checkpoint.resume": "restart"}
        before = self.hosts.sent()
        self.hosts.mpirun([str(program), *self.options(job, settings | trace | ending)], self.hosts.ranks)
        sent = (self.hosts.sent() - before) / (FIRST + steps - 1)
        records = [json.loads(line) for line in (self.folder / "run/metrics.jsonl").read_text().splitlines()]
        return statistics.median([record["step_time_s"] for record in records if "step_time_s" in record][FIRST - 1 :]), sent

    def plan(self, program: Path, job: str, settings: dict, trace: Path) -> float:
        """Predicted seconds of a step."""
        words = [str(program), "plan", *self.options(job, settings), "--profile", str(trace), "--format", "json"]
        return json.loads(execute(words))["step_time"]

    def measure(self, program: Path, job: str, layout: str) -> None:
        """The unlimited link, then each slow one."""
        trace = self.folder / "trace.json"
        for gbps in (UNLIMITED, *self.args.gbps):
            self.hosts.limit(gbps)
            settings = layout_of(layout, self.hosts.ranks) | self.find_link(program, job, gbps).settings(self.hosts.ranks)
            if layout == "pp_auto":
                settings["distributed.pp_costs"] = trace
            steps = JOBS[job].steps
            if gbps != UNLIMITED:
                predicted = self.plan(program, job, settings, trace)
                steps = max(2, min(steps, int(LONGEST_S / predicted)))
            if gbps == UNLIMITED and layout == "pp_auto":  # the best schedule follows from a trace of another schedule
                self.run(program, job, settings | {"distributed.pp_schedule": "1f1b", "distributed.pp_costs": ""}, steps)
                shutil.copy(self.folder / "run/trace.json", trace)
            measured, sent = self.run(program, job, settings, steps)
            if gbps == UNLIMITED:
                base = measured
                if layout != "pp_auto":
                    shutil.copy(self.folder / "run/trace.json", trace)
                predicted = self.plan(program, job, settings, trace)
            figures = self.table.setdefault((program, job, layout, gbps), Figures())
            figures.measured.append(measured)
            figures.predicted.append(predicted)
            figures.speed.append(base / measured)
            figures.sent.append(sent)
            print(f"{job}, {layout}, {gbps:g} Gb/s: {measured:.3f} s, plan {predicted:.3f} s", file=sys.stderr, flush=True)


def link_rows(links: dict) -> list[list[str]]:
    rows = [["job", "limit, Gb/s", "an activation, Gb/s", "short message, us"]]
    for (job, gbps), found in links.items():
        rate, latency = (statistics.median(getattr(link, part) for link in found) for part in ("gbps", "latency_us"))
        rows.append([job, f"{gbps:g}" if gbps else "none", f"{rate:.3g}", f"{latency:.0f}"])
    return rows


def step_rows(table: dict) -> list[list[str]]:
    several = len({program for program, *_ in table}) > 1
    rows = [["program"] * several + ["job", "layout", "limit, Gb/s", "step, s", "of its speed", "plan, s", "plan / step", "sent, MB"]]
    for (program, job, layout, gbps), figures in table.items():
        ratio = statistics.median(p / m for p, m in zip(figures.predicted, figures.measured))
        seconds = [f"{statistics.median(values):.3g}" for values in (figures.measured, figures.predicted)]
        name = [str(program.parent.name)] * several + [job, layout, f"{gbps:g}" if gbps else "none"]
        sent = f"{statistics.median(figures.sent) / 1e6:.4g}"
        rows.append([*name, seconds[0], f"{100 * statistics.median(figures.speed):.0f} %", seconds[1], f"{ratio:.2f}", sent])
    return rows


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), help="shakespeare.toml, llama_bench.toml")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=["pp", "dp_replicate", "dp_shard", "tp"])
    parser.add_argument("--gbps", nargs="*", type=float, default=[10, 1, 0.1], help="limits each way, beside none")
    parser.add_argument("--latency-us", type=float, default=0, help="that every link has beyond its own")
    parser.add_argument("--ranks-per-host", type=int, default=1, help="more: the layouts dp_replicate, dp_shard and hybrid")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pptrain", type=Path, nargs="+", default=[ROOT / "build/pptrain"], help="the executable, or several in turns")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to pptrain")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    args = parser.parse_args()
    if args.ranks_per_host < 1 or (MICROBATCHES // 2) % args.ranks_per_host:
        parser.error(f"--ranks-per-host: a divisor of {MICROBATCHES // 2}, the microbatches of one of two data ranks")
    if args.ranks_per_host > 1 and not set(WITHIN_HOST).issuperset(args.layouts):
        parser.error(f"--ranks-per-host: give --layouts of {', '.join(WITHIN_HOST)}")
    if args.ranks_per_host == 1 and "hybrid" in args.layouts:
        parser.error("--layouts hybrid: give --ranks-per-host of 2 or more")
    return args


def main() -> int:
    args = arguments()
    programs = [program.resolve() for program in args.pptrain]
    with tempfile.TemporaryDirectory(prefix="pptrain_links_") as name, Hosts(2, args.ranks_per_host, args.latency_us, Path(name)) as hosts:
        try:
            hosts.start()
        except RunFailed as failure:
            print(f"no network namespaces with slow links here: {failure}", file=sys.stderr)
            return 2
        write_tokens(Path(name) / "tokens.bin", FIRST + max(job.steps for job in JOBS.values()))
        bench = Bench(args, Path(name), hosts)
        for number in range(args.rounds):
            for job, layout, program in ((j, l, p) for j in args.jobs for l in args.layouts for p in programs):
                print(f"round {number + 1} of {args.rounds}: {job}, {layout}", file=sys.stderr)
                try:
                    bench.measure(program, job, layout)
                except RunFailed as failure:
                    print(f"{job}, {layout}: {failure}", file=sys.stderr)
                    return 1
    print(machine())
    print(formatted(link_rows(bench.links), args.markdown, names=1), end="\n\n")
    print(formatted(step_rows(bench.table), args.markdown, names=2 + (len(programs) > 1)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
