"""The completions of real shells with the scripts that `pptrain completion` prints.

Usage: completion_test.py PPTRAIN [unittest arguments]; a shell that is not installed is skipped
"""

import os
import pathlib
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest

PPTRAIN = pathlib.Path(sys.argv.pop(1)).resolve()
SOURCE = pathlib.Path(__file__).resolve().parents[3]
DEADLINE = 120  # seconds; a shell answers in a fraction of one


def pptrain(*arguments):
    return subprocess.run([PPTRAIN, *arguments], capture_output=True, text=True, check=True, timeout=DEADLINE).stdout


def keys_of_reference():
    """Every key of configs/reference.toml: a key without a default is behind a #."""
    text = (SOURCE / "configs/reference.toml").read_text()
    section, keys = "", set()
    for line in text.splitlines():
        if header := re.fullmatch(r"(# )?\[+([\w.]+)\]+", line):
            section = header[2]
            if header[1]:  # a list of tables is one key
                keys.add(section)
                section = ""
        elif (entry := re.match(r"(# )?(\w+) = ", line)) and section:
            keys.add(f"{section}.{entry[2]}")
    for name, table in tomllib.loads(text).items():  # checks the keys that are not behind a #
        for key, value in table.items():
            assert isinstance(value, dict) or f"{name}.{key}" in keys, (name, key)
    return keys


class Shell:
    """The cases that hold in all shells. `complete` returns the completions of the line's last word."""

    name = ""

    @classmethod
    def setUpClass(cls):
        if not shutil.which(cls.name):
            raise unittest.SkipTest(f"{cls.name} is not installed")
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="pptrain_completion_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.script = cls.folder / "script"
        cls.script.write_text(pptrain("completion", cls.name))
        work = cls.folder / "work"
        (work / "folder").mkdir(parents=True)
        for file in ("job.toml", "a job.toml", "notes.txt"):
            (work / file).touch()
        cls.start(work)

    def assertProposed(self, line, *expected):
        self.assertEqual({word.rstrip("/") for word in self.complete(line)}, set(expected), line)

    def test_subcommands(self):
        names = re.findall(r"^  (\w+)  ", pptrain("--help").split("Subcommands:")[1], re.M)
        self.assertIn("plan", names)
        self.assertLessEqual(set(names), set(self.complete("pptrain ")))
        self.assertProposed("pptrain chec", "check")
        self.assertProposed("pptrain completion ", "bash", "fish", "zsh")

    def test_every_option_of_the_help(self):
        for command in ([], ["plan"], ["tokenize"]):
            options = set(re.findall(r"^  (?:-\w,)?(--[\w-]+)", pptrain(*command, "--help"), re.M))
            self.assertIn("--help", options)
            proposed = {word.rstrip("=") for word in self.complete(" ".join(["pptrain", *command, "--"]))}
            self.assertEqual(options, {word for word in proposed if word.startswith("--")})
        self.assertNotIn("--format", self.complete("pptrain --f"))
        self.assertProposed("pptrain verify --form")

    def test_choices(self):
        words = ("text", "csv", "json", "svg", "trace")
        self.assertProposed("pptrain plan --format ", *words)
        self.assertProposed("pptrain plan --search --format=", *("--format=" + word for word in words))
        self.assertProposed("pptrain plan --format=s", "--format=svg")
        self.assertProposed("pptrain plan --device h1", "h100")
        self.assertProposed("pptrain --color ", "auto", "always", "never")
        self.assertProposed("pptrain generate --max-tokens ")

    def test_keys_of_the_job(self):
        self.assertEqual({word.rstrip("=") for word in self.complete("pptrain --set ")}, keys_of_reference())
        self.assertProposed("pptrain --set train.dt", "train.dtype=")
        self.assertProposed("pptrain check --config job.toml --set train.dtype=", "train.dtype=bf16", "train.dtype=fp32")
        self.assertProposed("pptrain check --set train.dtype=b", "train.dtype=bf16")
        self.assertProposed("pptrain --set=train.dtype=f", "--set=train.dtype=fp32")
        self.assertProposed("pptrain --set distributed.pp=2 --set profile.trace=", "profile.trace=true", "profile.trace=false")
        self.assertProposed("pptrain --set distributed.pp_split=", "distributed.pp_split=even", "distributed.pp_split=cost")
        self.assertProposed("pptrain --set distributed.pp_schedule=1", "distributed.pp_schedule=1f1b")
        self.assertProposed("pptrain config train.st", "train.steps")
        self.assertProposed("pptrain config lora", "lora", *(key for key in keys_of_reference() if key.startswith("lora.")))
        self.assertNotIn("distributed.pp_schedule=folder/", self.complete("pptrain --set distributed.pp_schedule="))
        self.assertProposed("pptrain --set distributed.pp_schedule=./fol", "distributed.pp_schedule=./folder")
        self.assertProposed("pptrain --set train.steps=")

    def test_files(self):
        self.assertProposed("pptrain --config j", "job.toml")
        self.assertProposed("pptrain --config=j", "--config=job.toml")
        self.assertProposed("pptrain eval --config job.toml --checkpoint ", "folder")
        self.assertProposed("pptrain verify fol", "folder")
        self.assertProposed("pptrain plan -o no", "notes.txt")
        self.assertProposed("pptrain --set data.path=fo", "data.path=folder")
        self.assertIn("job.toml", self.complete("pptrain check --config "))


class Bash(Shell, unittest.TestCase):
    name = "bash"

    @classmethod
    def start(cls, work):
        cls.work = work

    def complete(self, line, breaks="= \t\n\"'><;|&(:"):
        """Calls the function as bash's readline does, which breaks words at = and : too."""
        words = []
        for word in line.split(" "):
            quoted = word.startswith(("'", '"'))
            words += [word] if quoted or not word else [p for p in re.split(f"([{re.escape(breaks)}])", word) if p]
            if not quoted and word and word[-1] in breaks and word[-1] not in "=:":
                words.append("")
        typed = "" if words[-1] in breaks else words[-1]
        script = f"""
            source {shlex.quote(str(self.script))}
            COMP_WORDBREAKS={shlex.quote(breaks)}
            COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}
            COMP_LINE={shlex.quote(line)}; COMP_POINT={len(line)}
            complete -p pptrain | grep -q -- "-F _pptrain pptrain" && _pptrain && printf '%s\\n' "${{COMPREPLY[@]}}" """
        done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, cwd=self.work, timeout=DEADLINE)
        self.assertEqual((done.returncode, done.stderr), (0, ""), line)
        kept = line.rsplit(" ", 1)[1]
        kept = kept[:len(kept) - len(typed)]
        return [kept + word for word in done.stdout.splitlines() if word]

    def test_files_have_the_ending(self):
        self.assertProposed("pptrain --config ", "job.toml", "a job.toml", "folder")

    def test_words_are_broken_otherwise(self):
        no_equals = " \t\n\"'><;|&("
        self.assertEqual(set(self.complete("pptrain --set train.dtype=", no_equals)), {"train.dtype=bf16", "train.dtype=fp32"})
        self.assertEqual(self.complete("pptrain --set=train.dtype=b", no_equals), ["--set=train.dtype=bf16"])
        self.assertEqual(self.complete("pptrain plan --format=s", no_equals), ["--format=svg"])

    def test_a_quoted_word(self):
        # Readline breaks no words inside quotes, and replaces the text behind the quote.
        self.assertEqual(self.complete("pptrain --set 'train.dtype=b"), ["train.dtype=bf16"])

    def test_a_blank_begins_a_new_word(self):
        self.assertIn("--set", self.complete("pptrain check --set train.dtype=bf16 "))
        self.assertNotIn("train.dtype=bf16", self.complete("pptrain check --set train.dtype= "))


class Fish(Shell, unittest.TestCase):
    name = "fish"

    @classmethod
    def start(cls, work):
        cls.work = work

    def complete(self, line):
        quoted = line.replace("\\", "\\\\").replace("'", "\\'")
        done = subprocess.run(["fish", "--no-config", "-c", f"source {shlex.quote(str(self.script))}; complete -C '{quoted}'"],
                              capture_output=True, text=True, cwd=self.work, timeout=DEADLINE,
                              env=dict(os.environ, HOME=str(self.folder), XDG_DATA_HOME=str(self.folder)))
        self.assertEqual((done.returncode, done.stderr), (0, ""), line)
        return [entry.split("\t")[0] for entry in done.stdout.splitlines()]

    def test_what_is_proposed_is_described(self):
        done = subprocess.run(["fish", "--no-config", "-c", f"source {shlex.quote(str(self.script))}; complete -C 'pptrain check --wor'"],
                              capture_output=True, text=True, timeout=DEADLINE)
        self.assertRegex(done.stdout, r"^--world\tWorld size")


# Writes the added completions to $HITS. When ^X^K is typed, it also appends the current line. Text that is typed before
# the line editor has the terminal would be lost.
ZSHRC = r"""
PS1= PS2= RPS1=
unset zle_bracketed_paste
unsetopt beep auto_menu
zstyle ':completion:*' menu no
LISTMAX=10000
autoload -Uz compinit && compinit -u -D
source $SCRIPT
compadd() {
  if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then
    builtin compadd "$@"
    return
  fi
  local -a hits
  builtin compadd -A hits "$@"
  local -A suffix
  zparseopts -E -A suffix S: p: P:
  local hit
  for hit in $hits; do
    print -r -- "$IPREFIX${suffix[-P]}${suffix[-p]}$hit${suffix[-S]}" >> $HITS
  done
  builtin compadd "$@"
}
answer() {
  print -r -- "==$BUFFER" >> $HITS
  BUFFER=
}
zle -N answer
bindkey '^X^K' answer
bindkey '^I' complete-word
zle-line-init() { print -r -- "==ready" >> $HITS }
zle -N zle-line-init
"""


class Zsh(Shell, unittest.TestCase):
    name = "zsh"

    @classmethod
    def start(cls, work):
        (cls.folder / ".zshrc").write_text(ZSHRC)
        cls.hits = cls.folder / "hits"
        cls.hits.touch()
        cls.asked = 0
        cls.terminal, child = pty.openpty()
        env = {k: v for k, v in os.environ.items() if k not in ("BASH_ENV", "ENV")}
        env.update(ZDOTDIR=str(cls.folder), HITS=str(cls.hits), SCRIPT=str(cls.script), TERM="xterm", LC_ALL="C")
        cls.shell = subprocess.Popen(["zsh", "-d", "-i"], stdin=child, stdout=child, stderr=child, cwd=work, env=env,
                                     start_new_session=True)
        os.close(child)
        cls.addClassCleanup(cls.end)
        cls.wait_for_answer()

    @classmethod
    def end(cls):
        cls.shell.kill()
        cls.shell.wait()
        os.close(cls.terminal)

    @classmethod
    def wait_for_answer(cls):
        """The lines written since the last answer, and the line on the terminal at that time."""
        end = time.monotonic() + DEADLINE
        shown = b""
        while time.monotonic() < end:
            if select.select([cls.terminal], [], [], 0.02)[0]:
                shown += os.read(cls.terminal, 65536)
            text = cls.hits.read_text()[cls.asked:]
            if answer := re.search(r"^==(.*)\n", text, re.M):
                cls.asked += len(text)
                return text[:answer.start()].splitlines(), answer[1]
        raise AssertionError(f"zsh does not answer; the terminal shows {shown!r}")

    def complete(self, line):
        os.write(self.terminal, line.encode() + b"\t\x18\x0b")
        hits, self.buffer = self.wait_for_answer()
        return {hit.removesuffix(" ") for hit in hits}

    def test_the_line_is_completed(self):
        self.complete("pptrain --set train.dtype=b")
        self.assertEqual(self.buffer.strip(), "pptrain --set train.dtype=bf16")
        self.complete("pptrain --set=train.dtype=b")
        self.assertEqual(self.buffer.strip(), "pptrain --set=train.dtype=bf16")

    def test_files_have_the_ending(self):
        self.assertProposed("pptrain --config ", "job.toml", "a\\ job.toml", "folder")


if __name__ == "__main__":
    unittest.main()
