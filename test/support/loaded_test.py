"""loaded_pptrain.cpp: a command forked from a loaded program is the command.

    loaded_test.py PPTRAIN [unittest arguments]
"""

import pathlib
import signal
import subprocess
import sys
import unittest

from pptrain import Case, Forked, environment, job, run, wait_for_steps

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
SERVER_WITHOUT_ANSWER = f"#!{sys.executable}\nimport socket, sys\nsocket.socket(fileno=int(sys.argv[1])).recv(10)\n"


class LoadedTest(Case):
    def test_commands_say_what_starts_of_their_own_say(self):
        (self.folder / "job.toml").write_text(job())
        for arguments, code, variables in ((["config", "--reference"], 0, {}), (["check", "--config", "none.toml"], 2, {}),
                                           (["plan", "--config", "job.toml", "--after", "split_pairs"], 0, {}),
                                           (["--config", "job.toml"], 2, dict(RANK="x", WORLD_SIZE=2, MASTER_ADDR="localhost", MASTER_PORT=1))):
            command, env = [str(PPTRAIN), *arguments], environment(**variables)
            own = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True)
            forked = Forked(command, self.folder, env)
            said = forked.communicate(timeout=60)
            with self.subTest(arguments):
                self.assertEqual(forked.returncode, code)
                self.assertEqual((forked.returncode, *said), (own.returncode, own.stdout, own.stderr))

    def test_several_commands_at_a_time(self):
        (self.folder / "job.toml").write_text(job(train={"steps": 1_000_000}))
        train = [str(PPTRAIN), "--config", "job.toml", "--set"]
        long = [Forked([*train, f'run.dir="{name}"'], self.folder, environment()) for name in "ab"]
        self.addCleanup(lambda: [process.kill() for process in long])
        self.assertEqual(run([str(PPTRAIN), "check", "--config", "none.toml"], self.folder, code=2).stdout, "")
        self.assertEqual([process.poll() for process in long], [None, None])
        with self.assertRaises(subprocess.TimeoutExpired):
            long[0].wait(0.01)
        long[1].kill()
        self.assertEqual(long[1].wait(30), -signal.SIGKILL)
        self.assertIsNone(long[0].poll())
        wait_for_steps(long[:1], self.folder / "a", 2)
        long[0].send_signal(signal.SIGTERM)
        self.assertEqual(long[0].wait(30), 3)

    def test_what_acts_on_loading_has_a_start_of_its_own(self):
        self.assertTrue(Forked.serves([str(PPTRAIN)], environment(RANK=0)))
        self.assertFalse(Forked.serves([str(PPTRAIN)], environment(LD_PRELOAD="library.so")))
        self.assertFalse(Forked.serves([str(PPTRAIN)], environment(OMP_NUM_THREADS=2)))

    def test_a_server_that_gives_no_answer_is_no_success(self):
        server = self.folder / "loaded_pptrain"
        server.write_text(SERVER_WITHOUT_ANSWER)
        server.chmod(0o755)
        with self.assertRaisesRegex(AssertionError, "without an answer"):
            run([self.folder / "pptrain"], self.folder)


if __name__ == "__main__":
    unittest.main()
