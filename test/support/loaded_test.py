"""loaded_pptrain.cpp: a command forked from a loaded program is the command.

    loaded_test.py PPTRAIN [unittest arguments]
"""

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
        for arguments, code in ((["config", "--reference"], 0), (["check", "--config", "none.toml"], 2),
                                (["plan", "--config", "job.toml", "--after", "split_pairs"], 0)):
            command = [str(PPTRAIN), *arguments]
            own = subprocess.run(command, cwd=self.folder, env=environment(), capture_output=True, text=True)
            loaded = Loaded.of(command).run(command, self.folder, timeout=60)
            with self.subTest(arguments):
                self.assertEqual(loaded.returncode, code)
                self.assertEqual((loaded.returncode, loaded.stdout, loaded.stderr), (own.returncode, own.stdout, own.stderr))

    def test_a_server_that_gives_no_answer_is_no_success(self):
        server = self.folder / "server"
        server.write_text(SERVER_WITHOUT_ANSWER)
        server.chmod(0o755)
        with self.assertRaisesRegex(AssertionError, "without an answer"):
            Loaded(server).run(["pptrain"], self.folder, timeout=60)


if __name__ == "__main__":
    unittest.main()
