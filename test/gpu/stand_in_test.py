"""Jobs on an absent GPU (stand_in/README.md): the host's calls, and the memory that it needs.

Usage: stand_in_test.py PPTRAIN GPU_BENCH STAND_IN DRIVER_FOLDER [unittest arguments]. Kernels compute nothing, so losses have no meaning.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
GPU_BENCH = pathlib.Path(sys.argv.pop(1)).resolve()
STAND_IN = pathlib.Path(sys.argv.pop(1)).resolve()
DRIVER_FOLDER = pathlib.Path(sys.argv.pop(1)).resolve()
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "support"))
import pptrain  # noqa: E402

PATIENCE = 600  # seconds

JOB = """
[run]
dir = "run"
device = "cuda"
[model]
arch = "llama"
hidden_size = 256
intermediate_size = 512
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 2
vocab_size = 256
[train]
steps = 3
seq_len = 128
micro_batch_size = 2
grad_accum_steps = 4
dtype = "bf16"
grad_clip = 1.0
[data]
path = "{text}"
format = "text"
val_fraction = 0.1
[optimizer]
lr = 1e-3
""".format(text=ROOT / "configs" / "data" / "tinyshakespeare.txt")


class Result:
    def __init__(self, process, folder):
        self.code, self.output = process.returncode, process.stdout + process.stderr
        journal = folder / "journal"  # absent if the program never used the GPU
        lines = journal.read_text().splitlines() if journal.exists() else []
        self.journal = [line.split(" ", 2)[1:] for line in lines]

    def count(self, kind):
        return sum(line[0] == kind for line in self.journal)


def environment(folder, gpus=1, capability=90, taken=0, **extra):
    return pptrain.environment(LD_PRELOAD=STAND_IN, LD_LIBRARY_PATH=DRIVER_FOLDER, HOME=folder,
                              PPTRAIN_GPU_JOURNAL=folder / "journal", PPTRAIN_GPU_COUNT=gpus,
                              PPTRAIN_GPU_CAPABILITY=capability, PPTRAIN_GPU_TAKEN_GIB=taken, **extra)


class StandIn(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def start(self, *settings, command=(), **machine):
        """A short job with `settings` ("section.key=value"), in its own folder."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        (folder / "job.toml").write_text(JOB)
        words = [PPTRAIN, *command, "--config", "job.toml", *(word for s in settings for word in ("--set", s))]
        process = subprocess.run(words, cwd=folder, env=environment(folder, **machine), capture_output=True,
                                 text=True, timeout=PATIENCE)
        return Result(process, folder)

    def run_job(self, *settings, **machine):
        result = self.start(*settings, **machine)
        self.assertEqual(result.code, 0, result.output)
        self.assertEqual([line for line in result.journal if line[0] == "error"], [], "a GPU would refuse")
        return result

    def assert_no_default_stream(self, result):
        """Work on the default stream would wait for the work of all threads."""
        on_default = {line[1] for line in result.journal if line[0] == "work" and line[1].startswith("s0 ")}
        self.assertEqual(on_default, set())

    def test_settings_that_change_what_the_host_asks_for(self):
        for capability, settings in (
                (80, ["distributed.pp=2", 'distributed.pp_schedule="1f1b"', "checkpoint.interval=1"]),
                (90, ["distributed.pp=2", 'distributed.pp_schedule="zbv"', "train.overlap_weight_gradients=false"]),
                (80, ["distributed.dp_replicate=2", 'optimizer.name="muon"', "train.deterministic=false"]),
                (80, ["distributed.dp_shard=2", 'train.recompute="full"', "eval.interval=1", "eval.batches=1"]),
                (80, ["distributed.tp=2", 'train.dtype="fp32"']),
                (80, ["distributed.cp=2", 'model.arch="qwen3"', "model.head_dim=64"]),
                (80, ["distributed.dp_shard=2", 'model.arch="qwen3_moe"', "model.head_dim=64", "model.num_experts=4",
                      "model.num_experts_per_tok=2", "model.moe_intermediate_size=64"]),
                (90, ['data.packing="sequential"', 'optimizer.name="lion"', 'train.recompute="none"', 'train.fp8="rowwise"']),
        ):
            with self.subTest(settings=settings):
                self.assert_no_default_stream(self.run_job(*settings, capability=capability))

    def test_gpus_that_do_not_multiply_in_fp8_are_refused(self):
        for command in ([], ["check"]):
            with self.subTest(command):
                result = self.start('train.fp8="rowwise"', command=command, capability=80)
                self.assertEqual(result.code, 4 if command else 2, result.output)
                self.assertIn("(compute capability 8.0) does not multiply in FP8", result.output)
                self.assertEqual(result.count("work"), 0)

    def test_memory_that_another_program_has_is_missed_at_the_start(self):
        result = self.start("train.micro_batch_size=512", taken=139)
        self.assertEqual(result.code, 2, result.output)
        self.assertRegex(result.output, "needs [0-9.]+ GB; NVIDIA H200 has 15[0-9.]+ GB, of which [01]\\.[0-9] GB are free: other programs use")
        result = self.start("train.micro_batch_size=512", "run.force_memory=true", taken=139)
        self.assertEqual(result.code, 1, result.output)
        self.assertIn("out of memory: ", result.output)

    def test_a_gpu_that_is_stuck_ends_the_process(self):
        result = self.start("distributed.timeout_s=1", "train.steps=100", PPTRAIN_GPU_STUCK_AT=1000)
        self.assertEqual(result.code, 1, result.output)
        self.assertRegex(result.output, "for 1.0 s no GPU has ended any pass: the GPU of rank 0 is in [A-Z] stage 0 microbatch [0-3]")

    def test_each_gpu_has_its_attention(self):
        for capability, used, unused in ((80, "flash_bwd", "cudnn"), (90, "cudnn", "flash_bwd")):
            work = "\n".join(line[1] for line in self.run_job(capability=capability).journal if line[0] == "work")
            self.assertIn(used, work)
            self.assertNotIn(unused, work)

    def test_a_step_of_four_layers_and_microbatches(self):
        """app/train/README.md counts the waits of a dense step; FlashAttention-2 has six launches of each layer's."""
        short, long = (self.run_job(f"train.steps={steps}", capability=80) for steps in (3, 13))
        self.assertEqual((long.count("wait") - short.count("wait")) / 10, 2)
        launches = (long.count("work") - short.count("work")) / 10 / (4 * 4)
        self.assertGreater(launches, 25)
        self.assertLess(launches, 40)
        # At the start LibTorch asks the driver once for all, and for cuBLAS on the stream of weight gradients.
        large = [int(line[1]) for line in long.journal if line[0] == "malloc" and int(line[1]) > 20_000_000]
        self.assertEqual(large[1:], [32 << 20])
        self.assertEqual(long.count("malloc"), short.count("malloc"))

    def run_processes(self, name, command, *settings, **machine):
        """Two processes with a GPU each: their exit codes, what they said, and the journal's lines without thread numbers."""
        (self.folder / "job.toml").write_text(JOB)
        journal = self.folder / f"journal_{name}"
        words = [PPTRAIN, *command, "--config", "job.toml", *pptrain.sets("distributed.pp=2", f'run.dir="run_{name}"', *settings)]
        here = environment(self.folder, gpus=2, **machine) | {"PPTRAIN_GPU_JOURNAL": str(journal)}
        codes, output = [], ""
        for rank in pptrain.start_ranks([words] * 2, self.folder, own_start=True, **here):
            output += "".join(rank.communicate(timeout=PATIENCE))
            codes.append(rank.returncode)
        return codes, output, [line.split(" ", 1)[1] for line in journal.read_text().splitlines()]

    def test_processes_of_a_host_exchange_through_memory_that_they_share(self):
        """Without collectives of GPU tensors they need no NCCL, which has no stand-in."""
        for name, command, settings in (("zbv", [], ['distributed.pp_schedule="zbv"']),
                                        ("interleaved", [], ['distributed.pp_schedule="interleaved_1f1b"']),
                                        ("doctor", ["doctor"], [])):
            with self.subTest(name):
                codes, output, lines = self.run_processes(name, command, *settings)
                # The doctor finds that a message takes longer than a pass of so small a model.
                self.assertLessEqual(max(codes), 1 if command else 0, output)
                self.assertEqual([line for line in lines if line.startswith("error")], [], "a GPU would refuse")
                # Each of two links has memory for two sizes of test messages, the larger one also for activations.
                self.assertEqual(sum(line.startswith("ipc open") for line in lines), 4)
                self.assertEqual(lines.count("ipc close"), 4)
                self.assertGreater(sum(line.endswith("copy 131072") for line in lines), 6)
                if command:
                    self.assertRegex(output, r"links +(OK|no) +the slowest, at rank [01]: [0-9]+ us, [0-9.]+ Gb/s; an activation of 0.13 MB")

    def test_a_rank_without_memory_ends_all_and_is_named(self):
        begin = time.monotonic()
        codes, output, _ = self.run_processes("memory", [], "train.micro_batch_size=512", "run.force_memory=true", taken=139)
        self.assertNotIn(0, codes, output)
        self.assertRegex(output, r"out of memory: rank [01] \(pipeline rank [01]\): ")
        self.assertNotIn("waited", output)
        self.assertLess(time.monotonic() - begin, 60)

    def test_libtorch_takes_operands_in_each_form_of_fp8(self):
        """It checks their shapes, types and strides before it asks cuBLAS."""
        out = self.folder / "bench.json"
        command = [GPU_BENCH, "--small", "--seconds", "0.01", "--sections", "products", "--out", out]
        result = Result(subprocess.run(command, env=environment(self.folder), capture_output=True, text=True, timeout=PATIENCE),
                        self.folder)
        self.assertEqual(result.code, 0, result.output)
        self.assertEqual([line for line in result.journal if line[0] == "error"], [], "a GPU would refuse")
        rows = json.loads(out.read_text())["sections"]["products"]["rows"]
        self.assertEqual({row["form"] for row in rows}, {"bf16", "tensor", "row", "1x128"})
        failed = {(row["form"], row["kernel"], row["rows"]) for row in rows if "error" in row}
        # 64 tokens are no block of 128.
        self.assertEqual(failed, {("1x128", "accumulate_weight_gradient", 64), ("1x128", "all", 64)})

    def test_memory_is_what_plan_predicts(self):
        for recipe, microbatches in (("llama3_8b_8gpu", 16), ("qwen3_8b_pp2_fsdp4", 8)):
            with self.subTest(recipe=recipe):
                foretold, taken = self.memory(recipe, microbatches)
                self.assertAlmostEqual(foretold / taken, 1, delta=0.01, msg=f"plan {foretold} GB, taken {taken} GB")

    def memory(self, recipe, microbatches):
        """GB on the fullest of 8 ranks: predicted by `pptrain plan`, and from LibTorch's allocator after two steps."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        job = ["--config", ROOT / "configs" / f"{recipe}.toml", "--set", f"train.grad_accum_steps={microbatches}",
               "--set", f"data.path={ROOT / 'configs/data/tinyshakespeare.txt'}", "--set", f"run.dir={folder / 'run'}"]
        plan = subprocess.run([PPTRAIN, "plan", *job], capture_output=True, text=True, timeout=PATIENCE,
                              env=pptrain.environment(), check=True)
        table = plan.stdout[plan.stdout.index("GB at the worst moment"):].split("\n\n")[0].splitlines()
        rows = [row.split() for row in table if row.split()[0].isdigit()]
        self.assertTrue(rows)
        with open(folder / "errors", "w") as errors:
            run = subprocess.Popen([PPTRAIN, *job], cwd=folder, stdout=errors, stderr=errors, env=environment(folder, gpus=8))
        self.addCleanup(run.wait)
        self.addCleanup(run.kill)
        metrics = folder / "run" / "metrics.jsonl"
        deadline = time.monotonic() + PATIENCE
        while not (metrics.exists() and metrics.read_text().count("\n") >= 2):
            self.assertIsNone(run.poll(), (folder / "errors").read_text())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.1)
        run.kill()  # before it saves 90 GB
        self.assertIsNone(re.search(r"^\d+ error ", (folder / "journal").read_text(), re.M))
        return max(float(row[-1]) for row in rows), json.loads(metrics.read_text().splitlines()[1])["memory_gb"]


if __name__ == "__main__":
    unittest.main()
