"""The program on a terminal: its bar at every width, its lines, its colours, Ctrl-C, and the log that it writes.

Usage: terminal_test.py PPTRAIN [unittest arguments]
"""

import fcntl
import os
import pathlib
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from pptrain import Case, environment, job, run, start  # noqa: E402

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()

JOB = job(run={"dir": "run"}, train={"steps": 40}, data={"val_fraction": 0.2}, eval={"interval": 20, "batches": 40},
          metrics={"log_interval": 10})

COLOR = re.compile(r"\x1b\[[0-9;]*m")
TIMED = re.compile(r"\d\d:\d\d:\d\d (.*)")


class Screen:
    """A terminal with this number of columns. It knows only the few escape sequences that the program uses."""

    def __init__(self, columns):
        self.columns = columns
        self.rows = [""]
        self.row = self.column = 0
        self.wrapped = False
        self.bars = []  # each text of the last line, before the next text replaced it

    def feed(self, text):
        text = COLOR.sub("", text)
        for piece in re.findall(r"\x1b\[\d*[A-Z]|\r\n|\r|\n|[^\r\n\x1b]+", text):
            line = self.rows[self.row]
            if piece == "\r":
                if line:
                    self.bars.append(line)
                self.column = 0
            elif piece in ("\n", "\r\n"):
                self.column = self.column if piece == "\n" else 0
                self.row += 1
                if self.row == len(self.rows):
                    self.rows.append("")
            elif piece == "\x1b[K":
                self.rows[self.row] = line[: self.column]
            elif piece == "\x1b[J":
                self.rows[self.row:] = [line[: self.column]]
            elif piece.endswith("A"):
                self.row -= int(piece[2:-1])
            elif piece[0] == "\x1b":
                raise AssertionError(f"an unknown sequence: {piece!r}")
            else:
                self.rows[self.row] = line[: self.column] + piece + line[self.column + len(piece):]
                self.column += len(piece)
                if piece.startswith(("[", "step")) and self.column >= self.columns:
                    self.wrapped = True


class Terminal(Case):
    def setUp(self):
        super().setUp()
        (self.folder / "job.toml").write_text(JOB)

    def command(self, *arguments):
        return [str(PPTRAIN), "--config", "job.toml", *arguments]

    def environment(self, **extra):
        env = {k: v for k, v in environment().items() if k not in ("NO_COLOR", "COLORTERM")}
        return {**env, "TERM": "xterm-256color", **extra}

    def run_in_pipes(self, *arguments, code=0):
        return run(self.command(*arguments), self.folder, code=code, timeout=60, env=self.environment())

    def start(self, *arguments, columns=100, **extra):
        """A run on its own controlling terminal; the test types Ctrl-C there."""
        return self.start_command(self.command(*arguments), columns, **extra)

    def start_command(self, command, columns=100, **extra):
        pid, terminal = pty.fork()
        if pid == 0:
            try:
                time.sleep(0.2)  # the parent sets the size
                os.chdir(self.folder)
                os.execve(PPTRAIN, command, self.environment(**extra))
            finally:
                os._exit(99)
        self.resize(terminal, columns)
        self.addCleanup(os.close, terminal)
        return pid, terminal

    def resize(self, terminal, columns):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))

    def read(self, terminal, until=None, timeout=60):
        """Its output until this text is there, or until it ends."""
        text = ""
        deadline = time.monotonic() + timeout
        while until is None or until not in text:
            self.assertLess(time.monotonic(), deadline, text)
            if not select.select([terminal], [], [], 0.2)[0]:
                continue
            try:
                block = os.read(terminal, 65536)
            except OSError:  # the other side is closed
                break
            if not block:
                break
            text += block.decode(errors="replace")  # a model may write any bytes
        return text

    def run_on_terminal(self, *arguments, columns=100, code=0, **extra):
        pid, terminal = self.start(*arguments, columns=columns, **extra)
        text = self.read(terminal)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), code, text)
        return text

    def lines(self, text, columns=100):
        screen = Screen(columns)
        screen.feed(text)
        self.assertFalse(screen.wrapped, "the bar is wider than the terminal")
        self.assertEqual(screen.rows[-1], "", "the bar is gone at the end")
        return screen.rows[:-1], screen.bars

    def test_the_bar_fits_and_the_history_stays(self):
        for columns in (30, 80, 160):
            with self.subTest(columns):
                text = self.run_on_terminal("--set", f"run.dir={columns}", columns=columns)
                rows, bars = self.lines(text, columns)
                said = [TIMED.fullmatch(row).group(1) for row in rows]
                for step in (1, 10, 20, 30, 40):
                    self.assertEqual(sum(line.startswith(f"step {step}/40  loss") for line in said), 1, rows)
                self.assertEqual(sum("validation loss" in line for line in said), 3, rows)  # 20, 40, the last line
                self.assertTrue(said[-1].startswith("done: 40 steps"))
                self.assertTrue(any("evaluating" in bar for bar in bars), bars)
                self.assertTrue(any("saving" in bar for bar in bars), bars)
                self.assertEqual(any("mem " in bar for bar in bars), columns == 160)
                self.assertEqual(any("[" in bar and "loss" in bar for bar in bars), columns >= 80)

    def test_the_log_is_what_was_printed_and_is_appended_to(self):
        printed = []
        for steps in (10, 20):
            done = self.run_in_pipes("--set", f"train.steps={steps}")
            self.assertNotIn("\x1b", done.stdout)
            self.assertNotIn("\r", done.stdout)
            printed += [TIMED.fullmatch(line).group(1) for line in done.stdout.splitlines()]
        logged = (self.folder / "run/log.txt").read_text().splitlines()
        dated = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d ([IWE]) (.*)")
        self.assertEqual([dated.fullmatch(line).group(2) for line in logged], printed)
        self.assertTrue(any("resumed from" in line for line in printed))

    def test_a_failure_is_in_the_log(self):
        self.run_in_pipes("--set", "optimizer.lr=1e30", "--set", "train.max_skipped_steps=1", code=1)
        logged = (self.folder / "run/log.txt").read_text()
        self.assertRegex(logged, r"\bW step \d+/40 .*SKIPPED")
        self.assertRegex(logged, r"\bE rank \d: .*max_skipped_steps")

    def test_colors_when_wanted(self):
        def has_color(text):
            return COLOR.search(text) is not None

        steps = ("--set", "train.steps=2", "--set", "eval.interval=0")
        self.assertTrue(has_color(self.run_on_terminal(*steps)))
        for name, arguments, extra in (("NO_COLOR", (), {"NO_COLOR": "1"}), ("never", ("--color=never",), {}),
                                       ("dumb", (), {"TERM": "dumb"})):
            with self.subTest(name):
                text = self.run_on_terminal(*steps, *arguments, "--set", f"run.dir={name}", **extra)
                self.assertFalse(has_color(text), text)
                self.assertEqual("\x1b" in text, name != "dumb")
        piped = self.run_in_pipes(*steps, "--color=always", "--set", "run.dir=piped")
        self.assertTrue(has_color(piped.stdout))
        self.assertNotIn("\x1b", (self.folder / "piped/log.txt").read_text())

    def test_the_window_may_change_its_size(self):
        pid, terminal = self.start("--set", "train.steps=100000", columns=120)
        self.read(terminal, until="mem ")
        self.resize(terminal, 40)
        self.read(terminal, until="\r")
        time.sleep(0.3)
        screen = Screen(40)
        screen.feed("\r" + self.read(terminal, until="loss").rsplit("\r", 1)[-1])
        self.assertFalse(screen.wrapped, screen.rows)
        os.kill(pid, signal.SIGTERM)
        self.read(terminal)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 3)

    def test_ctrl_c_stops_after_the_step_and_a_second_one_at_once(self):
        pid, terminal = self.start("--set", "train.steps=100000")
        text = self.read(terminal, until="step 10/")
        os.write(terminal, b"\x03")
        text += self.read(terminal)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 3)
        rows, _ = self.lines(text.replace("^C", ""))
        self.assertTrue(any(re.search(r"SIGINT: finishing step \d+, then saving; press again to stop at once \(", row)
                            for row in rows), rows)
        self.assertIn("stopped by a signal", rows[-1])

        # The second one comes in the middle of a step that takes minutes.
        pid, terminal = self.start("--set", "train.steps=100000", "--set", "train.grad_accum_steps=400000",
                                   "--set", "run.dir=long")
        text = self.read(terminal, until="step 0/")
        os.write(terminal, b"\x03")
        text += self.read(terminal, until="press again")
        os.write(terminal, b"\x03")
        text += self.read(terminal, timeout=10)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 130)
        rows, _ = self.lines(text.replace("^C", ""))
        self.assertIn("ended at once in step 1: no checkpoint was saved, so 0 finished steps are lost", rows)

    def test_a_conversation_begins_anew_where_the_positions_end(self):
        self.run_in_pipes("--set", "train.steps=1", "--set", "model.max_position_embeddings=64", "--set", "train.seq_len=64")
        pid, terminal = self.start_command([str(PPTRAIN), "generate", "run", "--max-tokens", "30"])
        self.read(terminal, "Ctrl-D ends")
        for typed, answer in ((20, "> "), (10, "it begins anew with this line"), (80, "it is left out"), (12, "> ")):
            os.write(terminal, b"a" * typed + b"\n")
            self.read(terminal, answer)
        os.write(terminal, b"\x04")
        self.read(terminal)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)

    def test_a_terminal_that_goes_away_stops_the_run_and_nohup_does_not_let_it(self):
        for hang_up, code in ((signal.SIG_DFL, 3), (signal.SIG_IGN, 0)):
            before = signal.signal(signal.SIGHUP, hang_up)
            try:
                steps = 100000 if code == 3 else 60
                pid, terminal = self.start("--set", f"train.steps={steps}", "--set", f"run.dir=hung_up_{code}")
            finally:
                signal.signal(signal.SIGHUP, before)
            self.read(terminal, until="step 10/")
            # The terminal is closed: the kernel sends SIGHUP, and writing fails from now on.
            os.dup2(os.open(os.devnull, os.O_RDWR), terminal)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), code)
            log = (self.folder / f"hung_up_{code}/log.txt").read_text()
            self.assertEqual("stopped by a signal" in log, code == 3)
            self.assertTrue(list((self.folder / f"hung_up_{code}/checkpoints").glob("step_*")))

    def test_output_that_nobody_reads_any_more_ends_no_run(self):
        unread = start(self.command(), self.folder, env=self.environment())
        self.assertTrue(unread.stdout.readline())
        unread.stdout.close()
        self.assertEqual((unread.wait(60), unread.stderr.read()), (0, ""))
        unread.stderr.close()
        self.assertIn("done: 40 steps", (self.folder / "run/log.txt").read_text())

    def test_metrics_are_not_written_into_a_pipe(self):
        (self.folder / "run").mkdir()
        os.mkfifo(self.folder / "run/metrics.jsonl")
        done = self.run_in_pipes(code=1)
        self.assertIn("metrics.jsonl' is a pipe, not a file of metrics", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
