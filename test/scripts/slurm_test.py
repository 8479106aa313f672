"""scripts/slurm/pptrain.sbatch: which jobs queue themselves again. Stand-ins run Slurm's commands and the program."""

import json
import os
import pathlib
import signal
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from pptrain import SOURCE, Case, environment, start, wait_for  # noqa: E402

SCRIPT = SOURCE / "scripts/slurm/pptrain.sbatch"
STAND_INS = {
    # Slurm 22.05 hands SIGUSR1 on to the ranks; a SIGTERM makes it kill them.
    "srun": """import signal, subprocess, sys
rank = subprocess.Popen([word for word in sys.argv[1:] if not word.startswith(("--kill", "--cpus"))])
signal.signal(signal.SIGUSR1, lambda *_: rank.send_signal(signal.SIGUSR1))
signal.signal(signal.SIGTERM, lambda *_: rank.kill())
code = rank.wait()
sys.exit(code if code >= 0 else 128 - code)
""",
    "scontrol": """import json, pathlib, sys
print("localhost")
if sys.argv[1] == "requeue":
    pathlib.Path("requeued").write_text(json.dumps(sys.argv[2:]))
""",
    # Asked to stop, it needs some time. Else the file "end" ends it; JOB.toml has the exit code of a run that nobody stops.
    "pptrain": """import os, pathlib, signal, sys, time
stops = []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda *_: stops.append(1))
pathlib.Path("rank.new").write_text(str(os.getpid()))
os.rename("rank.new", "rank")
while not stops:
    time.sleep(0.01)
    if pathlib.Path("end").exists():
        sys.exit(int(pathlib.Path(sys.argv[2]).read_text()))
time.sleep(0.3)
sys.exit(3)
""",
}


class Slurm(Case):
    def run_script(self, *deeds, code="0"):
        """Does the deeds, one after the other, while the program runs; returns the script's exit code."""
        for name, text in STAND_INS.items():
            (self.folder / name).write_text(f"#!{sys.executable}\n{text}")
            (self.folder / name).chmod(0o755)
        (self.folder / "JOB.toml").write_text(code)
        for name in ("rank", "end", "requeued"):
            (self.folder / name).unlink(missing_ok=True)
        self.script = start(["bash", SCRIPT, "JOB.toml"], self.folder, env=environment(
            SLURM_JOB_ID=17, SLURM_JOB_NODELIST="localhost", PPTRAIN=self.folder / "pptrain", PATH=f"{self.folder}:{os.environ['PATH']}"))
        wait_for((self.folder / "rank").exists, 20, "the program's start")
        for deed in deeds:
            deed()
        _, said = self.script.communicate(timeout=20)
        self.assertNotIn("unbound", said)
        return self.script.returncode

    def requeued(self):
        file = self.folder / "requeued"
        return json.loads(file.read_text()) if file.exists() else None

    def warn(self):
        self.script.send_signal(signal.SIGUSR1)

    def terminate(self):
        self.script.send_signal(signal.SIGTERM)

    def terminate_the_rank(self):
        os.kill(int((self.folder / "rank").read_text()), signal.SIGTERM)

    def end(self):
        (self.folder / "end").touch()

    def test_a_job_whose_time_is_up_queues_itself_again(self):
        self.assertRegex(SCRIPT.read_text(), r"(?m)^#SBATCH --signal B:USR1@120$")
        for deeds in ([self.warn], [self.warn, self.warn]):
            self.assertEqual(self.run_script(*deeds), 3)
            self.assertEqual(self.requeued(), ["17"])

    def test_a_job_that_a_person_stops_does_not(self):
        for deeds in ([self.terminate_the_rank], [self.terminate], [self.terminate_the_rank, self.terminate], [self.warn, self.terminate]):
            self.assertEqual(self.run_script(*deeds), 3)
            self.assertIsNone(self.requeued())
        self.assertEqual(self.run_script(self.end, code="3"), 3)  # pptrain stop
        self.assertIsNone(self.requeued())

    def test_a_run_that_has_ended_or_failed_does_not(self):
        for code in (0, 1, 2):
            self.assertEqual(self.run_script(self.end, code=str(code)), code)
            self.assertIsNone(self.requeued())


if __name__ == "__main__":
    unittest.main()
