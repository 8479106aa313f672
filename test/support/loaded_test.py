"""loaded_pptrain.cpp: a command forked from a loaded program is the command.

    loaded_test.py PPTRAIN [unittest arguments]
"""

import concurrent.futures
import pathlib
import subprocess
import sys
import unittest

from pptrain import Case, Loaded, environment, job

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
            loaded = Loaded.run_idle(command, self.folder, timeout=60, env=env)
            with self.subTest(arguments):
                self.assertEqual(loaded.returncode, code)
                self.assertEqual((loaded.returncode, loaded.stdout, loaded.stderr), (own.returncode, own.stdout, own.stderr))

    def test_commands_at_a_time_each_get_their_answer(self):
        """As of threads: each has its own server, or an idle one."""
        words = [["config", "--reference"], ["check", "--config", "none.toml"]]

        def command(number):
            return Loaded.run_idle([str(PPTRAIN), *words[number % 2]], self.folder, timeout=60, env=environment()).returncode

        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            self.assertEqual(list(pool.map(command, range(8))), [0, 2] * 4)

    def test_what_acts_on_loading_has_a_start_of_its_own(self):
        self.assertTrue(Loaded.serves([str(PPTRAIN)], environment(RANK=0)))
        self.assertFalse(Loaded.serves([str(PPTRAIN)], environment(LD_PRELOAD="library.so")))
        self.assertFalse(Loaded.serves([str(PPTRAIN)], environment(OMP_NUM_THREADS=2)))

    def test_a_server_that_gives_no_answer_is_no_success(self):
        server = self.folder / "server"
        server.write_text(SERVER_WITHOUT_ANSWER)
        server.chmod(0o755)
        with self.assertRaisesRegex(AssertionError, "without an answer"):
            Loaded(server).run(["pptrain"], self.folder, timeout=60, env=environment())


if __name__ == "__main__":
    unittest.main()
