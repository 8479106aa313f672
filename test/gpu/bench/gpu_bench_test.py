"""The GPU benchmark's parts, on a CPU with small sizes: their outputs are complete and consistent.

Usage: gpu_bench_test.py GPU_BENCH PPTRAIN [unittest arguments]
"""

import itertools
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

GPU_BENCH = pathlib.Path(sys.argv.pop(1)).resolve()
PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
SCRIPTS = pathlib.Path(__file__).resolve().parents[3] / "scripts" / "bench"
sys.path.insert(0, str(SCRIPTS))
import gpu_report  # noqa: E402
import gpu_stage_model  # noqa: E402

PATIENCE = 600  # seconds
ROWS = 128  # tokens of the larger microbatch with small sizes
SIZES = gpu_stage_model.SMALL
QKV = (SIZES.heads + 2 * SIZES.kv_heads) * SIZES.head_dim
BLOCK = SIZES.hidden * (QKV + SIZES.heads * SIZES.head_dim + 3 * SIZES.ffn)
KERNELS = ("linear", "matmul", "accumulate_weight_gradient")
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS="1")

# A program that takes no step but records steps, faster if the job allows it, until it is killed.
FAKE_PPTRAIN = """#!{python}
import json, pathlib, sys, time
if sys.argv[1] == "config":
    print(json.dumps({{"properties": {{"train": {{"properties": {{"deterministic": {{}}, "fp8": {{}}}}}}}}}}))
    sys.exit()
job = pathlib.Path(sys.argv[2])
text = job.read_text()
if "{failing}" in text:
    sys.exit("no such GPU")
rate = 10.0 if "deterministic = true" in text else 20.0
rate *= 3 if 'fp8 = "rowwise"' in text else 1
run = job.parent / "run"
run.mkdir()
with open(run / "metrics.jsonl", "w") as out:
    for step in range(100):
        record = dict(step=step + 1, loss=1.0, tokens_per_s=rate, step_time_s=1.0, mfu=None, memory_gb=1.0)
        print(json.dumps(record), file=out, flush=True)
time.sleep({patience})
"""


def is_refused(row):
    """LibTorch on CPUs multiplies E4M3 with one scale a tensor; our own kernels have one a row, but no weight gradient."""
    ours = row.get("kernel") in KERNELS[:2]
    return row.get("form") == "1x128" or row.get("form") == "row" and not ours


def start(*command):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, env=ENVIRONMENT, timeout=PATIENCE)


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpu_bench_test_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_well(self, *command):
        done = start(*command)
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        return done.stdout

    def check_rate(self, row, amount, rate, seconds="seconds"):
        self.assertGreater(row[seconds], 0)
        self.assertAlmostEqual(row[rate] * row[seconds] / row[amount], 1, places=9, msg=row)


class GpuBench(Folder):
    def test_all_sections(self):
        out = self.folder / "bench.json"
        text = self.run_well(GPU_BENCH, "--device", "cpu", "--small", "--seconds", 0.05, "--out", out)
        report = json.loads(out.read_text())
        sections = report["sections"]
        self.assertEqual(list(sections), ["copy", "products", "attention", "kernels", "stages", "profile"])
        for name, section in sections.items():
            self.assertEqual(section["state"], "done")
            self.assertIn(name, text)
            self.assertTrue(section["rows"])
            for row in section["rows"]:
                self.assertEqual("error" in row, is_refused(row), row)
        names = ("hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab")
        self.assertEqual(report["sizes"], {name: getattr(SIZES, name) for name in names})
        self.assertGreater(report["peak_flops"], 0)
        self.check_copy_and_kernels(sections["copy"]["rows"], sections["kernels"]["rows"])
        self.check_products(sections["products"]["rows"])
        self.check_attention(sections["attention"]["rows"])
        self.check_stages(sections["stages"]["rows"], report["peak_flops"])
        self.check_profile(sections["profile"]["rows"])

    def check_copy_and_kernels(self, copies, kernels):
        [copy] = copies
        self.check_rate(copy, "bytes", "bytes_per_s")
        for row in kernels:
            self.check_rate(row, "bytes", "bytes_per_s")
            self.assertAlmostEqual(row["share"] * copy["bytes_per_s"] / row["bytes_per_s"], 1, places=9)
            self.assertLessEqual(row["fastest_s"], row["seconds"])
            self.assertLessEqual(row["seconds"], row["slowest_s"])
        found = {row["name"]: row["bytes"] for row in kernels}
        activations, rows = 2 * ROWS * SIZES.hidden, 4 * ROWS
        self.assertEqual(found["rms_norm"], 2 * activations + rows + 4 * SIZES.hidden)
        self.assertEqual(found["add_rms_norm"], 4 * activations + rows + 4 * SIZES.hidden)
        self.assertEqual(found["rms_norm_backward + residual"], 4 * activations + rows + 3 * 4 * SIZES.hidden)
        self.assertEqual(found["swiglu"], 3 * 2 * ROWS * SIZES.ffn)
        self.assertEqual(found["swiglu_backward"], 5 * 2 * ROWS * SIZES.ffn)
        self.assertEqual(found["swiglu_backward with swiglu again"], 6 * 2 * ROWS * SIZES.ffn)
        self.assertEqual(found["cross_entropy with gradient"], ROWS * (2 * 2 * SIZES.vocab + 8 + 4))
        self.assertEqual(found["adamw"], BLOCK * (4 * 7 + 2))
        self.assertEqual(found["add_squares"], BLOCK * 4 + 20 * 8)
        self.assertEqual(found["normal_values"], BLOCK * 4)
        more = {"norm_rope", "norm_rope_backward", "norm_rope with norm", "norm_rope_backward with norm", "cross_entropy"}
        more |= {"embedding", "embedding_backward", "accumulate_bias_gradient", "quantize_rows", "quantize_columns"}
        self.assertLessEqual(more, set(found))
        self.assertEqual(len(found), len(more) + 10)

    def check_products(self, rows):
        for row in rows:
            if is_refused(row):
                self.assertTrue(row["trial"])
                if (row["form"], row["kernel"], row["rows"]) != ("1x128", KERNELS[2], 64):  # 64 tokens are no block of 128
                    self.assertIn("only supports per-tensor scaling", row["error"])
        rows = [row for row in rows if not is_refused(row)]
        for row in rows:
            self.check_rate(row, "flops", "flops_per_s")
            if row["kind"] == "sustained" and row["form"] != "bf16":
                self.assertGreater(row["gemm_flops_per_s"], row["flops_per_s"])
        bursts = [row for row in rows if row["kind"] == "burst"]
        shapes = {"qkv": (SIZES.hidden, QKV), "o": (SIZES.heads * SIZES.head_dim, SIZES.hidden)}
        shapes |= {"gate_up": (SIZES.hidden, 2 * SIZES.ffn), "down": (SIZES.ffn, SIZES.hidden), "head": (SIZES.hidden, SIZES.vocab)}
        cases = [("bf16", KERNELS), ("tensor", KERNELS), ("row", KERNELS[:2])]
        expected = {(name, kernel, form, count) for name in shapes for form, kernels in cases for kernel in kernels for count in (64, ROWS)}
        expected = {case for case in expected if case[0] != "head" or case[2:] == ("bf16", ROWS)}
        self.assertEqual({(row["name"], row["kernel"], row["form"], row["rows"]) for row in bursts}, expected)
        for row in bursts:
            inner, outer = shapes[row["name"]]
            self.assertEqual(row["flops"], 2 * row["rows"] * inner * outer)
        for form, count in itertools.product(("bf16", "tensor"), (64, ROWS)):
            sustained = [row for row in rows if (row["kind"], row["form"], row["rows"]) == ("sustained", form, count)]
            [block] = [row for row in sustained if row["name"] == "block"]
            self.assertEqual(block["flops"], 3 * 2 * count * BLOCK)
            parts = [row for row in sustained if row["name"] != "block"]
            self.assertEqual(len(parts), 4 * len(KERNELS))
            self.assertEqual(sum(row["flops"] for row in parts), block["flops"])
            self.assertAlmostEqual(sum(row["seconds"] for row in parts) / block["seconds"], 1, places=6)
            self.assertAlmostEqual(block["seconds"] * block["calls"] / block["total_s"], 1, places=9)

    def check_attention(self, rows):
        cases = {(row["name"], row["pass"], row["sequence"]) for row in rows}
        names, sequences = ("pptrain", "pptrain, fastest", "aten flash"), (32, 128)
        passes = {"forward": 2, "backward": 5}
        self.assertEqual(cases, {(name, word, seq) for name in names for word in passes for seq in sequences})
        for row in rows:
            pairs = ROWS * row["sequence"] / 2  # pairs of a token and a token that it sees
            self.assertEqual(row["flops"], passes[row["pass"]] * 2 * pairs * SIZES.heads * SIZES.head_dim)
            self.check_rate(row, "flops", "flops_per_s")

    def check_profile(self, rows):
        for stage in ("first", "middle", "last"):
            first, *kernels = [row for row in rows if row["name"] == stage]
            self.assertEqual(first["kernel"], "all")
            self.assertIn("aten::empty", [row["kernel"] for row in kernels])  # GEMMs may be ours, which are no operators
            self.assertAlmostEqual(sum(row["seconds"] for row in kernels), first["seconds"], delta=1e-9)
            self.assertGreater(first["microbatch_s"], 0)
            self.assertAlmostEqual(first["share"], first["seconds"] / first["microbatch_s"], delta=1e-6)
            times = [row["seconds"] for row in kernels if row["kernel"] != "others"]
            self.assertEqual(times, sorted(times, reverse=True))

    def check_stages(self, rows, peak):
        cases = {(row["name"], row["sequence"], row["recompute"], row["backward"], row["attention"]) for row in rows}
        ways = [("none", "B", "deterministic"), ("none", "I + W", "deterministic"), ("cheap", "B", "deterministic")]
        ways += [(recompute, "B", mode) for recompute in ("none", "cheap") for mode in ("fastest", "deterministic, fp8")]
        expected = {(name, seq, *way) for name in ("first", "middle", "last") for seq in (64, ROWS) for way in ways}
        self.assertEqual(cases, expected)
        places = {place.name: place for place in gpu_stage_model.PLACES}
        for row in rows:
            place = places[row["name"]]
            self.assertEqual((row["blocks"], row["in_flight"]), (place.blocks, place.in_flight))
            self.assertEqual(row["flops_per_token"], gpu_stage_model.flops_per_token(SIZES, place, row["sequence"]))
            tokens = row["microbatches"] * row["sequence"]
            self.assertAlmostEqual(row["tokens_per_s"] * row["total_s"] / tokens, 1, places=9)
            self.assertAlmostEqual(row["mfu"] * peak / (row["tokens_per_s"] * row["flops_per_token"]), 1, places=9)
            kinds = {"forward_s", "backward_s"} if row["backward"] == "B" else {"forward_s", "input_s", "weight_s"}
            self.assertEqual(kinds, {"forward_s", "backward_s", "input_s", "weight_s"} & set(row))
            self.assertGreater(row["host_s"], 0)
            self.assertGreater(row["peak_bytes"], 0)
            if row["name"] == "last":  # random weights: the loss is near that of a random guess
                self.assertAlmostEqual(row["loss"], math.log(SIZES.vocab), delta=1)

    def test_chosen_sections(self):
        out = self.folder / "bench.json"
        self.run_well(GPU_BENCH, "--device", "cpu", "--small", "--sections", "copy", "--out", out)
        self.assertEqual(list(json.loads(out.read_text())["sections"]), ["copy"])
        done = start(GPU_BENCH, "--device", "cpu", "--small", "--sections", "nothing", "--out", out)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("nothing", done.stderr)


class Torch(Folder):
    def test_stages(self):
        out = self.folder / "torch.json"
        script = SCRIPTS / "gpu_torch_stage.py"
        self.run_well(sys.executable, script, "--device", "cpu", "--small", "--eager", "--seconds", 0.01, "--out", out)
        rows = json.loads(out.read_text())["rows"]
        expected = {(place.name, seq) for place in gpu_stage_model.PLACES for seq in SIZES.sequences}
        self.assertEqual({(row["name"], row["sequence"]) for row in rows}, expected)
        for row in rows:
            self.assertNotIn("error", row)
            self.assertAlmostEqual(row["flops_per_s"] / (row["tokens_per_s"] * row["flops_per_token"]), 1, places=9)
            self.assertAlmostEqual(row["tokens_per_s"] * row["total_s"] / (row["microbatches"] * row["sequence"]), 1, places=9)
            self.assertTrue(any("flash" in name for name in row["attention_kernels"]))


class Whole(Folder):
    def run_whole(self, program, *more):
        out = self.folder / "whole.json"
        script = SCRIPTS / "gpu_whole.py"
        fixed = ["--pptrain", program, "--small", "--steps", 2, "--warmup", 1, "--timeout", PATIENCE, "--out", out]
        done = start(sys.executable, script, *fixed, *more)
        return done, json.loads(out.read_text())["rows"]

    def fake(self, failing):
        program = self.folder / "pptrain"
        program.write_text(FAKE_PPTRAIN.format(python=sys.executable, failing=failing, patience=PATIENCE))
        program.chmod(0o755)
        return program

    def test_program(self):
        done, rows = self.run_whole(PPTRAIN, "--device", "cpu", "--peak-tflops", 1)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual([(row["name"], row["steps"], len(row["all_tokens_per_s"])) for row in rows], [("default", 2, 2), ("fp8", 2, 2)])
        for row in rows:
            # The program counts operations itself.
            self.assertAlmostEqual(row["mfu"] * 1e12 / row["flops_per_s"], 1, places=6)
            self.assertAlmostEqual(row["last_loss"], math.log(512), delta=1)
        self.assertNotEqual(rows[0]["last_loss"], rows[1]["last_loss"])

    def test_all_modes_are_measured(self):
        done, rows = self.run_whole(self.fake("no job has this"), "--device", "cuda")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual([row["name"] for row in rows], list(gpu_report.MODES))
        self.assertEqual([row["tokens_per_s"] for row in rows], [10, 20, 30])

    def test_a_mode_that_fails(self):
        done, rows = self.run_whole(self.fake("deterministic = false"), "--device", "cuda")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(["error" in row for row in rows], [False, True, False])
        self.assertIn("no such GPU", rows[1]["error"])


class Report(Folder):
    def merged(self, **parts):
        arguments = []
        for name, content in parts.items():
            path = self.folder / f"{name}.json"
            path.write_text(json.dumps(content))
            arguments += [f"--{name}", path]
        outs = [self.folder / "all.json", self.folder / "all.md"]
        self.run_well(sys.executable, SCRIPTS / "gpu_report.py", *arguments, "--json", outs[0], "--markdown", outs[1])
        return json.loads(outs[0].read_text()), outs[1].read_text()

    def test_goals_stand_beside_figures(self):
        stage = {"name": "middle", "recompute": "none", "backward": "B", "attention": "default"}
        rows = [stage | {"sequence": 4096, "mfu": 0.66, "tokens_per_s": 300.0}, stage | {"sequence": 8192, "mfu": 0.59}]
        rows.append(stage | {"sequence": 8192, "recompute": "cheap", "error": "out of memory"})
        kernels = [{"name": "swiglu", "share": 0.9}, {"name": "adamw", "share": 0.5}]
        products = [{"kind": "burst", "name": "qkv", "kernel": "linear", "rows": 4096, "flops_per_s": 900e12}]
        products += [products[0] | {"kind": "sustained", "flops_per_s": 800e12}]
        sections = {"products": {"state": "done", "rows": products}, "stages": {"state": "done", "rows": rows}}
        sections["kernels"] = {"state": "failed", "error": "lost", "rows": kernels}
        bench = {"device": "NVIDIA H200", "cuda": "13.0", "peak_flops": 989e12, "small": False, "sections": sections}
        ours = {"name": "middle", "sequence": 4096, "attention": "cudnn", "compiled": True}
        measured, failed = {"tokens_per_s": 200.0, "flops_per_s": 494.5e12}, {"attention": "flash", "error": "no"}
        torch = {"torch": "2.11", "rows": [ours | measured, ours | failed]}
        whole = {"device": "cuda", "rows": [{"name": "deterministic", "sequence": 4096}]}
        figures, text = self.merged(bench=bench, torch=torch, whole=whole)
        self.assertEqual([goal["met"] for goal in figures["goals"]], [True, False, False, True, False])
        self.assertEqual([goal["goal"] for goal in figures["goals"]], [0.65, 0.60, 0.60, 0.85, 0.85])
        failed = figures["failures"]
        self.assertEqual(failed[:3], ["kernels: lost", "whole: fastest: not measured", "whole: fp8: not measured"])
        self.assertTrue(failed[3].endswith("out of memory"))
        self.assertTrue(failed[4].startswith("torch: middle 4096 flash"))
        self.assertIn("| 66.0% | 65.0% |", text)
        self.assertIn("| 800.0 | 80.9% | 900.0 |", text)  # a GEMM: sustained, of peak, burst
        self.assertIn("| 1.50 |", text)  # times PyTorch's rate
        self.assertIn("| 50.0% |", text)  # PyTorch's MFU

    def test_fp8_beside_bf16(self):
        row = {"kind": "sustained", "name": "qkv", "kernel": "linear", "form": "bf16", "rows": 4096, "flops_per_s": 600e12}
        rows = [row, row | {"form": "tensor", "flops_per_s": 720e12, "gemm_flops_per_s": 1200e12}]
        rows += [row | {"form": "row", "flops_per_s": 900e12, "gemm_flops_per_s": 1080e12}]
        refused = {name: row[name] for name in ("kind", "name", "kernel", "rows")} | {"form": "1x128", "trial": True, "error": "only SM90"}
        rows += [refused]
        rows += [{key: row[key] for key in row if key != "gemm_flops_per_s"} | {"kind": "burst"} for row in rows]
        bench = {"device": "NVIDIA H200", "cuda": "13.0", "peak_flops": 989e12, "small": False}
        bench["sections"] = {"products": {"state": "done", "rows": rows}}
        modes = [{"name": name, "sequence": 4096, "tokens_per_s": rate} for name, rate in (("deterministic", 100), ("fp8", 114))]
        figures, text = self.merged(bench=bench, whole={"device": "cuda", "rows": modes})
        self.assertEqual([(goal["measured"], goal["goal"], goal["met"]) for goal in figures["goals"]], [(1.14, 1.15, False)])
        self.assertIn("products: qkv linear 1x128 4096: only SM90", figures["failures"])
        sustained, bursts = text.split("## FP8 GEMMs")[1:]
        self.assertIn("| qkv | linear | 4,096 | 600.0 | 720.0 (1.20) | 900.0 (1.50) |  | 1,200.0 (2.00) | 1,080.0 (1.80) |  |", sustained)
        self.assertIn("| qkv | linear | 4,096 | 600.0 | 720.0 (1.20) | 900.0 (1.50) |  |\n", bursts)
        self.assertIn("| 1.14 |", text)

    def test_kernels_of_a_stage_by_kind(self):
        shares = {"all": 0.99, "nvjet_tst_256x128": 0.8, "cudnn_generated_oss_sdpa_sm90": 0.1,
                  "void pptrain::kernels::cuda::swiglu_rows": 0.075, "others": 0.015}
        rows = [{"name": "middle", "sequence": 4096, "kernel": kernel, "calls": 4, "seconds": share * 0.04, "share": share}
                for kernel, share in shares.items()]
        rows[0]["microbatch_s"] = 0.04
        sections = {"profile": {"state": "done", "rows": rows}}
        bench = {"device": "NVIDIA H200", "cuda": "13.0", "peak_flops": 989e12, "small": False, "sections": sections}
        text = self.merged(bench=bench)[1]
        self.assertIn("| middle | 4,096 | 40.00 | 99.0% | 80.0% | 10.0% | 7.5% | 1.5% |", text)
        self.assertIn("| middle | nvjet_tst_256x128 | 4 | 32,000.0 | 80.0% |", text)

    def test_small_sizes_have_no_goals(self):
        kernels = {"state": "done", "rows": [{"name": "swiglu", "share": 0.1}]}
        bench = {"device": "cpu", "cuda": "", "peak_flops": 1e12, "small": True, "sections": {"kernels": kernels}}
        figures, text = self.merged(bench=bench)
        self.assertEqual(figures["goals"], [])
        self.assertIn("| swiglu |", text)

    def test_nothing_there(self):
        outs = ["--json", self.folder / "a", "--markdown", self.folder / "b"]
        done = start(sys.executable, SCRIPTS / "gpu_report.py", "--bench", self.folder / "missing", *outs)
        self.assertEqual(done.returncode, 2)
        self.assertIn("none of the parts", done.stderr)


if __name__ == "__main__":
    unittest.main()
