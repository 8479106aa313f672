"""A run of many steps holds no more memory, descriptors or threads at its end than after its first steps.

Usage: long_run_test.py PPTRAIN [unittest arguments]
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from pptrain import Case, environment, job, records  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
STEPS = 2000
WARM_UP = 400  # until then caches fill, and the allocator's arenas reach their sizes

JOB = job(
    model={"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1},
    train={"steps": STEPS, "micro_batch_size": 1, "grad_accum_steps": 2}, data={"val_fraction": 0.1},
    eval={"interval": 20, "batches": 1, "generate_interval": 40, "generate_prompt": "ROMEO:", "generate_tokens": 4},
    optimizer={"lr": 1e-3}, lr_schedule=None, checkpoint={"interval": 20, "keep_last_n": 2}, metrics={"log_interval": 100})


class Sample:
    """The process's anonymous memory in bytes, descriptors and threads."""

    def __init__(self, pid, step):
        status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
        self.step = step
        self.memory = int(status["RssAnon"].split()[0]) * 1024
        self.threads = int(status["Threads"])
        self.descriptors = len(os.listdir(f"/proc/{pid}/fd"))


class Steps:
    """The last step of a metrics.jsonl that grows."""

    def __init__(self, file):
        self.file, self.position, self.step = file, 0, 0

    def read(self):
        if self.file.exists():
            with self.file.open("rb") as lines:
                lines.seek(self.position)
                text = lines.read()
            whole = text[:text.rfind(b"\n") + 1]
            self.position += len(whole)
            for line in whole.splitlines():
                self.step = json.loads(line).get("step", self.step)
        return self.step


class LongRun(Case):
    def samples_of_run(self, folder):
        (folder / "job.toml").write_text(JOB)
        with (folder / "output.txt").open("w") as output:
            process = subprocess.Popen([PPTRAIN, "--config", "job.toml", "--set", "run.dir=run"], stdout=output,
                                       stderr=subprocess.STDOUT, cwd=folder, env=environment())
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        steps, samples = Steps(folder / "run/metrics.jsonl"), []
        while process.poll() is None:
            try:
                samples.append(Sample(process.pid, steps.read()))
            except (OSError, KeyError):
                pass  # it ended meanwhile
            time.sleep(0.01)
        self.assertEqual(process.returncode, 0, (folder / "output.txt").read_text())
        self.assertEqual(steps.read(), STEPS)
        return samples

    def check_output(self, run_dir):
        found = records(run_dir)
        self.assertEqual(sum("grad_norm" in record for record in found), STEPS)
        self.assertEqual(sum("eval_loss" in record for record in found), STEPS // 20)
        self.assertEqual({folder.name for folder in (run_dir / "checkpoints").iterdir() if folder.is_dir()},
                         {f"step_{STEPS - 20}", f"step_{STEPS}"})
        self.assertGreaterEqual((run_dir / "log.txt").read_text().count("ROMEO:"), STEPS // 40)

    def test_memory_descriptors_and_threads_stay_the_same(self):
        samples = self.samples_of_run(self.folder)
        self.check_output(self.folder / "run")

        early = [s for s in samples if WARM_UP <= s.step < 2 * WARM_UP]
        late = [s for s in samples if STEPS - WARM_UP <= s.step < STEPS]
        self.assertGreater(min(len(early), len(late)), 20, "too few samples to compare")

        # A save in progress holds a few of each, and a sample meets a save by chance. The test compares values between saves.
        def figures(some):
            return {"memory": statistics.median(s.memory for s in some), "descriptors": min(s.descriptors for s in some),
                    "threads": min(s.threads for s in some)}
        before, after = figures(early), figures(late)
        print(f"{len(samples)} samples; early {before}, late {after}")
        self.assertLessEqual(after["memory"], 1.01 * before["memory"])
        self.assertEqual(after["descriptors"], before["descriptors"])
        self.assertEqual(after["threads"], before["threads"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
