"""Writes the site's pages as Markdown, and mkdocs.yml.

Usage: make_pages.py PPTRAIN OUT

The tree's own *.md keep their places, with every file that they link to. The program fills the other pages: one for each
command with its help and an example's output, one for each schedule with its picture, every key of a job, the manual page.
The script runs each command that a page shows, in the order of COMMANDS, in one folder with a copy of configs/.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

SOURCE = pathlib.Path(__file__).resolve().parents[2]
JOB = "--config configs/shakespeare.toml"
SMALL = "--set train.steps=20 --set train.grad_accum_steps=2 --set checkpoint.interval=10 --set eval.interval=10 --set eval.batches=2"
# A command of the site: its examples as shown, each with its exit code.
COMMANDS = {
    "train": [(f"pptrain {JOB} {SMALL}", 0)],
    "check": [(f"pptrain check {JOB}", 0)],
    "doctor": [(f"pptrain doctor {JOB}", None)],  # depends on the machine
    "plan": [(f"pptrain plan {JOB} --costs modelled --set train.grad_accum_steps=4", 0),
             ("pptrain plan --config configs/llama3_8b_8gpu.toml --device h100 --search", 0)],
    "eval": [("pptrain eval runs/shakespeare --batches 2", 0)],
    "generate": [("pptrain generate runs/shakespeare --prompt ROMEO: --max-tokens 40 --temperature 0.8", 0)],
    "fork": [("pptrain fork runs/shakespeare --step 10 --to runs/forked", 0), ("pptrain resume runs/forked", 0)],
    "bisect": [("pptrain bisect runs/shakespeare runs/forked", 0)],
    "diff": [("pptrain diff runs/shakespeare/checkpoints/step_10 runs/shakespeare/checkpoints/step_20", 1)],
    "resume": [("pptrain resume runs/shakespeare --set train.steps=30", 0)],
    "status": [("pptrain status runs/shakespeare", 3)],
    "report": [("pptrain report runs/shakespeare", 0)],
    "verify": [("pptrain verify runs/shakespeare", 0)],
    "convert": [("pptrain convert --from runs/shakespeare --to huggingface", 0)],
    "tokenize": [("pptrain tokenize --tokenizer configs/data/tokenizer --out tokens configs/data/tinyshakespeare.txt", 0)],
    "config": [("pptrain config --reference", 0)],
    "completion": [("pptrain completion bash", 0)],
    "save": [("pptrain save runs/live", 0)],  # the last two act on a running job
    "stop": [("pptrain stop runs/live", 0)],
}
LIVE = f"pptrain {JOB} --set run.dir=runs/live --set train.steps=100000 --set eval.interval=0 --set train.seq_len=32"
SHOWN_LINES = 40
SCHEDULE_JOB = "--config configs/zero_bubble.toml --device h100 --set distributed.pp=4"
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


class Shell:
    """Runs commands as a reader would, in its own folder, with `pptrain` on PATH."""

    def __init__(self, pptrain):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pptrain_site_"))
        shutil.copytree(SOURCE / "configs", self.folder / "configs")
        bin_folder = self.folder / "bin"
        bin_folder.mkdir()
        for name in ("pptrain", "pptrain_whole"):
            (bin_folder / name).symlink_to(pptrain.parent / name)
        self.env = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}

    def run(self, command, code=0):
        done = subprocess.run(["bash", "-c", command], cwd=self.folder, env=self.env, text=True, errors="replace", timeout=600,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if code not in (None, done.returncode):
            raise SystemExit(f"exit code {done.returncode} in place of {code}: {command}\n{done.stdout}")
        return done.stdout

    def start(self, command):
        """Returns when the run has finished a step."""
        process = subprocess.Popen(["bash", "-c", "exec " + command], cwd=self.folder, env=self.env, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        for line in process.stdout:
            if re.search(r"\bstep \d", line):
                return process
        raise SystemExit(f"ended before its first step: {command}")


def block(text):
    lines = text.rstrip("\n").split("\n")
    if len(lines) > SHOWN_LINES:
        lines = lines[:SHOWN_LINES] + [f"... {len(lines) - SHOWN_LINES} more lines"]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def shown(command):
    """A long command in several lines that a shell reads as one."""
    text, length = "", 0
    for word in re.split(r" (?=--|-o )", command):
        if text and length + len(word) > 90:
            text, length = text + " \\\n    ", 4
        text, length = text + (" " if text and length > 4 else "") + word, length + len(word) + 1
    return text


def arguments(help_text):
    """The lists of --help as tables, which wrap if the page is narrow."""
    out, section = "", ""
    for line in re.sub(r"\n {10,}", "  ", help_text).splitlines():
        entry = re.match(r"  (\S.*?)(?: {2,}(.*))?$", line)
        if line.endswith(":") and not line.startswith(" "):
            section = line.removesuffix(":")
            out += f"\n| {section.lower()} | |\n|---|---|\n"
        elif entry and section:
            out += f"| `{entry[1]}` | {cell(entry[2] or '')} |\n"
        elif section and line:
            out += f"\n{line}\n"
    return out


def command_page(shell, name, examples):
    help_text = shell.run("pptrain --help" if name == "train" else f"pptrain {name} --help")
    title = "pptrain: training" if name == "train" else f"pptrain {name}"
    page = f"# {title}\n\n{help_text.splitlines()[0]}\n\n"
    for command, code in examples:
        page += f"```console\n$ {shown(command)}\n```\n\n{block(shell.run(command, code))}\n"
        if code:
            page += f"Its exit code was {code}.\n\n"
    return page + "## Arguments\n" + arguments(help_text)


def write(out, path, text):
    file = out / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def write_commands(shell, out):
    live = None
    for name, examples in COMMANDS.items():
        if name == "save":
            live = shell.start(LIVE)
        write(out, f"commands/{name}.md", command_page(shell, name, examples))
    live.wait(timeout=60)
    shutil.copy(shell.folder / "runs/shakespeare/report.html", out / "commands/report_of_a_run.html")
    with (out / "commands/report.md").open("a") as page:
        page.write("\n[The page that this command wrote](report_of_a_run.html)\n")


def schedule_rows():
    """name -> (idle time, activations held, when), from configs/schedules/README.md."""
    rows = {}
    for line in (SOURCE / "configs/schedules/README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 4 or not cells[0].startswith("`"):
            continue
        for name in re.findall(r"`(\w+)`", cells[0]):
            if name != "pp_schedule":
                rows[name] = cells[1:]
    return rows


def write_schedule(shell, out, name, row):
    command = f"pptrain plan {SCHEDULE_JOB} --set distributed.pp_schedule={name} --format svg -o {name}.svg"
    shell.run(command)
    shutil.copy(shell.folder / f"{name}.svg", out / f"schedules/{name}.svg")
    page = f"# {name}\n\n| idle time of a rank | activations held | when |\n|---|---|---|\n| {' | '.join(row)} |\n\n"
    title = re.search(rf"{name}: [^<]*", (shell.folder / f"{name}.svg").read_text())[0]
    page += f"Costs of an H100; {title}:\n\n[![A step of {name}]({name}.svg)]({name}.svg)\n\n```console\n$ {shown(command)}\n```\n\n"
    page += "What the letters mean: [one step](../README.md#one-step). All schedules beside each other: "
    page += "[schedules](../configs/schedules/README.md).\n"
    write(out, f"schedules/{name}.md", page)


def write_schedules(shell, out):
    (out / "schedules").mkdir()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda entry: write_schedule(shell, out, *entry), schedule_rows().items()))


def cell(value):
    return re.sub(r"([|*\\])", r"\\\1", str(value)).replace("\n", " ").replace("<", "&lt;")


def write_reference(shell, out):
    sections = json.loads(shell.run("pptrain config --schema"))["properties"]
    page = "# Every key of a job\n\nFrom `pptrain config --schema`; the same as commented TOML: `pptrain config`.\n"
    page += f"\n`include`, at the top of a job: {sections.pop('include')['description']}\n"
    for section, schema in sections.items():
        page += f"\n## [{section}]\n\n| key | default | values | meaning |\n|---|---|---|---|\n"
        for key, option in schema["properties"].items():
            values = ", ".join(map(str, option["enum"])) if "enum" in option else option.get("type", "")
            default = json.dumps(option["default"]) if "default" in option else ""
            page += f"| `{key}` | {cell(default)} | {cell(values)} | {cell(option.get('description', ''))} |\n"
    write(out, "reference.md", page)


def plain(roff):
    text = re.sub(r"\\f([BI])(.*?)\\fR", lambda m: f"**{m[2]}**" if m[1] == "B" else f"*{m[2]}*", roff.replace("*", "\\\\*"))
    return text.replace("\\-", "-").replace("\\&", "").replace("\\e", "\\\\").replace("<", "&lt;")


def manual_as_markdown(roff):
    """Reads the few macros that app/completion/man_page.cpp writes."""
    out, is_term = "", False
    for line in roff.splitlines()[1:]:
        macro, _, rest = line.partition(" ") if line.startswith(".") else ("", "", line)
        if macro == ".TP":
            is_term = True
            continue
        if macro in (".nf", ".fi"):
            out += "\n```text\n" if macro == ".nf" else "```\n\n"
        elif macro in (".SH", ".SS"):
            out += f"\n{'##' if macro == '.SH' else '###'} {plain(rest)}\n\n"
        elif macro == ".PP":
            out += "\n"
        elif macro == ".br":
            out = out.rstrip("\n") + "  \n"
        else:
            text = {".B": f"**{plain(rest)}**", ".IR": "*" + plain(rest).replace(" ", "*", 1)}.get(macro, plain(rest))
            out += f"\n{text}\n:   " if is_term else f"{text}\n"
            is_term = False
    return re.sub(r"```text\n(.*?)```", lambda m: m[0].replace("\\*", "*"), out, flags=re.S)


def write_manual(build, out):
    text = manual_as_markdown((build / "pptrain.1").read_text())
    write(out, "manual.md", "# The manual page\n\nAs `man pptrain` shows it where pptrain is installed.\n" + text)


def copy_tree(out):
    """The tree's own pages, and the files that they link to."""
    folders = ("app", "core", "parallel", "models", "configs", "scripts", "test", "docs")
    pages = [*SOURCE.glob("*.md"), *(page for folder in folders for page in (SOURCE / folder).rglob("*.md"))]
    for path in (page.relative_to(SOURCE) for page in pages):
        text = (SOURCE / path).read_text()
        for link in LINK.findall(text):
            target = (SOURCE / path).parent / link
            if "://" not in link and target.is_file() and target.suffix != ".md":
                copy = out / os.path.relpath(target.resolve(), SOURCE)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(target, copy)
        write(out, path, text)


def navigation(out):
    def title(path):
        return re.search(r"^# (.+)", (out / path).read_text(), re.M)[1]

    def pages(folder, names):
        return [{title(f"{folder}/{name}.md"): f"{folder}/{name}.md"} for name in names]
    code = sorted(str(path.relative_to(out)) for path in out.rglob("README.md")
                  if path.relative_to(out).parts[0] in ("app", "core", "parallel", "models", "scripts", "test"))
    guides = ["launching", "going_on", "stopping_and_resuming", "data", "lora", "fp8", "evaluation", "metrics", "what_is_exact", "speed",
              "coming_from", "glossary"]
    return [
        {"pptrain": "README.md"},
        {"Guides": [*pages("docs", guides), {"Jobs to start from": "configs/README.md"}, {"Packages": "scripts/packaging/README.md"},
                    {"Changes": "CHANGELOG.md"}]},
        {"Commands": [*pages("commands", COMMANDS), {"Manual page": "manual.md"}]},
        {"Keys": "reference.md"},
        {"Schedules": [{"All": "configs/schedules/README.md"}, *pages("schedules", schedule_rows())]},
        {"The code": [{"A tour": "DEVELOPING.md"}, {"Contributing": "CONTRIBUTING.md"}, {"Security": "SECURITY.md"},
                      *[{path.removesuffix("/README.md"): path} for path in code]]},
    ]


def make(pptrain, out):
    pages = out / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    pages.mkdir(parents=True)
    shell = Shell(pptrain)
    try:
        copy_tree(pages)
        write_commands(shell, pages)
        write_schedules(shell, pages)
        write_reference(shell, pages)
        write_manual(pptrain.parent, pages)
    finally:
        shutil.rmtree(shell.folder)
    shutil.copy(SOURCE / "scripts/site/site.css", pages)
    version = subprocess.run([pptrain, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    settings = {"INHERIT": str(SOURCE / "scripts/site/mkdocs.yml"), "site_name": version, "docs_dir": "pages",
                "site_dir": "html", "nav": navigation(pages)}
    (out / "mkdocs.yml").write_text(json.dumps(settings, indent=1))  # YAML contains JSON


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve())
