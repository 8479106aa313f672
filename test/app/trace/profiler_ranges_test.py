"""A profiler sees the actions of each rank's list, by their names.

Usage: profiler_ranges_test.py PPTRAIN NVTX_RECORDER [unittest arguments]
"""

import collections
import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from pptrain import job, run, sets, temporary_folder  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
RECORDER = pathlib.Path(sys.argv.pop(1)).resolve()


class ProfilerRanges(unittest.TestCase):
    def test_every_action_of_a_step_is_a_range(self):
        folder = temporary_folder(self.addCleanup)
        (folder / "job.toml").write_text(job(train={"steps": 2, "grad_accum_steps": 3}))
        record = folder / "ranges.txt"
        environment = {**os.environ, "NVTX_INJECTION64_PATH": str(RECORDER), "PPTRAIN_NVTX_RECORD": str(record)}
        settings = sets("distributed.pp=2", "distributed.pp_schedule=zb_h1", "run.dir=run")
        run([PPTRAIN, "--config", "job.toml", *settings], folder, env=environment)
        seen = collections.Counter(record.read_text().split())
        for stage in (0, 1):
            for microbatch in range(3):
                self.assertEqual(seen[f"{stage}F{microbatch}"] >= 2, True, seen)
                self.assertEqual(seen[f"{stage}I{microbatch}"] + seen[f"{stage}B{microbatch}"], 2, seen)
        self.assertEqual(seen["0SEND_F1"], 2)


if __name__ == "__main__":
    unittest.main()
