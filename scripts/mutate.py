"""Runs the tests that cover a file on mutants of it (mutants.py); used by mutate.sh.

The built tree is not changed: only the mutated files are compiled, all mutants of a file at once, and the programs that the
tests run are linked anew with these objects before the libraries. Each mutant then costs only the tests up to the first that
fails: those of the quick tier before the others, and in each tier the cheapest first.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import mutants

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ["app/train", "app/rank", "core/optim", "core/data", "parallel", "models"]
# ctest's names of the tests that cover a folder, the cheapest of a tier first; the longest prefix of a file's path counts.
COVER = {
    "core/optim": ["core_optim", "parallel_shard", "app_optimizers", "app_recipes", "app_resume", "app_forecast", "app_oracle"],
    "core/data/tokens": ["core_tokens", "core_data", "models", "app_sequence_slices"],
    "core/data": ["core_data", "app_documents", "app_resume", "app_recipes", "app_oracle"],
    "parallel/axes": ["parallel_axes", "app_mesh_grid", "app_mesh_grid_experts"],
    "parallel/checkpoint": ["parallel_checkpoint", "app_resume", "app_sharding", "app_deaths"],
    "parallel/comm/dry": ["parallel_comm", "app_forecast", "app_plan"],
    "parallel/comm": ["parallel_comm", "parallel_comm_clock", "app_checks", "app_sharding", "app_tour", "app_liveness_kills",
                      "app_liveness_starts"],
    "parallel/mesh": ["parallel_mesh", "app_mesh_grid", "app_blocks"],
    "parallel/pipeline": ["parallel_pipeline", "app_layouts", "app_post_validation", "app_spread_head", "app_forecast"],
    "parallel/schedule": ["parallel_schedule", "parallel_pipeline", "app_trace", "app_plan", "app_schedules", "app_forecast"],
    "parallel/shard": ["parallel_shard", "app_sharding", "app_optimizers"],
    "models/families": ["models", "models_hf_facts", "models_transformers", "app_hf_directory"],
    "models": ["models", "app_load_plan", "app_layouts", "app_plan", "app_spread_head", "app_forecast", "models_hf_facts",
               "models_transformers", "app_hf_directory"],
    "app/train": ["app_checks", "app_run_dir", "app_recipes", "app_optimizers", "app_resume", "app_post_validation", "app_samples",
                  "app_layouts", "app_documents", "app_terminal", "app_quick_stop"],
    "app/rank": ["app_checks", "app_optimizers", "app_resume", "app_post_validation", "app_sharding", "app_layouts", "app_tour",
                 "app_bystanders", "app_mesh_grid_experts", "app_oracle"],
}
COMPILE_TRIES = 6


def cover_of(file):
    prefixes = [prefix for prefix in COVER if file.startswith(prefix + "/")]
    return COVER[max(prefixes, key=len)] if prefixes else []


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def changed_lines(base, paths):
    """{file: changed lines} of the working tree against `base`."""
    result, file = collections.defaultdict(set), None
    for line in git("diff", "-U0", "--no-color", base, "--", *paths).splitlines():
        if line.startswith("+++ "):
            file = line[6:]
        elif found := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(found[1]), int(found[2] or 1)
            result[file].update(range(first, first + count))
    return result


def choose(paths, lines, count, seed, units):
    """[(file, Mutant)]; `lines`: {file: lines} that may change, None for all; `units`: what the build compiles."""
    found = []
    for file in sorted(git("ls-files", "--", *paths).split()):
        if file not in units or not cover_of(file) or (lines is not None and file not in lines):
            continue
        for mutant in mutants.find_mutants((ROOT / file).read_text()):
            if lines is None or mutant.line in lines[file]:
                found.append((file, mutant))
    random.Random(seed).shuffle(found)
    return found[:count]


@dataclass
class Test:
    command: list
    folder: str
    environment: dict
    is_quick: bool


class Build:
    """A tree that ninja built, and the files that are compiled and linked for it elsewhere."""

    def __init__(self, folder, to):
        self.folder, self.to = folder.resolve(), to
        to.mkdir(parents=True, exist_ok=True)
        (to / "mutant.h").write_text(
            '#pragma once\n#include <cstdlib>\ninline bool pptrain_mutant(int number) {\n'
            '  static const int active = [] {\n    const char* const text = std::getenv("PPTRAIN_MUTANT");\n'
            '    return text == nullptr ? 0 : std::atoi(text);\n  }();\n  return active == number;\n}\n')
        entries = json.loads((self.folder / "compile_commands.json").read_text())
        self.units = {}  # file below the root: (entry, all files of its unit)
        cache = (self.folder / "CMakeCache.txt").read_text()
        source = self.source = pathlib.Path(re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$", cache, re.MULTILINE)[1])
        for entry in entries:
            path = pathlib.Path(entry["file"])
            files = [path]
            if "/Unity/" in entry["file"]:
                files = [source / name for name in re.findall(r'#include "([^"]+)"', path.read_text())]
            for file in files:
                if file.is_relative_to(source):
                    self.units[str(file.relative_to(source))] = (entry, [str(f.relative_to(source)) for f in files])

    def compile_unit(self, entry, files, texts):
        """`texts`: {file: text} of the changed files. Returns (object, errors)."""
        name = os.path.relpath(entry["output"], self.folder).replace("/", "_")
        unit = self.to / f"{name}.cpp"
        parts = []
        for file in files:
            if file in texts:
                changed = self.to / "source" / file
                changed.parent.mkdir(parents=True, exist_ok=True)
                changed.write_text(texts[file])
                parts.append(f'#include "{changed}"\n')
            else:
                parts.append(f'#include "{ROOT / file}"\n')
        unit.write_text(f'#include "{self.to / "mutant.h"}"\n' + "".join(parts))
        words = [word for word in shlex.split(entry["command"]) if not word.startswith("-Werror") and word != "-Winvalid-pch"]
        words = [f"-I{ROOT}" if word == f"-I{self.source}" else word for word in words]
        at = words.index("-o")
        del words[at:at + 2]
        words[words.index("-c") + 1] = str(unit)
        target = self.to / f"{name}.o"
        words += ["-w", "-o", str(target)]
        done = subprocess.run(words, cwd=entry["directory"], capture_output=True, text=True)
        return target, done.stderr if done.returncode else ""

    def program(self, name, objects):
        """Links the build's program `name` with the `objects`: in place of its own, or before its libraries."""
        command = subprocess.run(["ninja", "-C", self.folder, "-t", "commands", name], capture_output=True, text=True,
                                 check=True).stdout.splitlines()[-1]
        command = command.removeprefix(": && ").removesuffix(" && :").split(" && ")[0]
        target = self.to / name
        before, after = command.split(f"-o {name} ", 1)  # objects end in a space each
        own = " ".join(shlex.quote(str(target)) for target, library, _ in objects if f"/{library} " in f"{after} ")
        for target, _, output in objects:
            before = before.replace(f" {os.path.relpath(output, self.folder)} ", f" {shlex.quote(str(target))} ")
        done = subprocess.run(f"{before}{own} -o {shlex.quote(str(target))} {after}",
                              shell=True, cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name} could not be linked with the mutants:\n{done.stderr[-3000:]}")
        return target

    def tests(self):
        """{ctest's name: Test}"""
        shown = subprocess.run(["ctest", "--test-dir", self.folder, "--show-only=json-v1"], capture_output=True, text=True,
                               check=True).stdout
        result = {}
        for test in json.loads(shown)["tests"]:
            properties = {p["name"]: p["value"] for p in test["properties"]}
            if "command" in test:
                environment = dict(v.split("=", 1) for v in properties.get("ENVIRONMENT", []))
                result[test["name"]] = Test(test["command"], properties.get("WORKING_DIRECTORY"), environment,
                                            "full" not in properties.get("LABELS", []))
        return result


def compile_mutants(build, chosen):
    """Compiles the units with all mutants that compile. Returns ([(object, its library, the build's object)], numbers of the mutants
    in them)."""
    by_unit = collections.defaultdict(dict)
    for number, (file, mutant) in chosen.items():
        entry, files = build.units[file]
        by_unit[entry["output"]].setdefault(file, {})[number] = mutant
    units = {entry["output"]: (entry, files) for entry, files in build.units.values()}

    def compile_one(output):
        entry, files = units[output]
        wanted = by_unit[output]
        for attempt in range(COMPILE_TRIES):
            schemas = {file: mutants.schema((ROOT / file).read_text(), of_file) for file, of_file in wanted.items()}
            texts = {file: text for file, (text, _) in schemas.items()}
            target, errors = build.compile_unit(entry, files, texts)
            if not errors:
                return target, [number for _, numbers in schemas.values() for number in numbers]
            # A schema keeps the lines of its file, so that an error's line identifies its mutants.
            bad = {(file, int(line)) for file in wanted
                   for line in re.findall(re.escape(str(build.to / "source" / file)) + r":(\d+)", errors)}
            text_of = {file: (ROOT / file).read_text() for file in wanted}

            def is_bad(file, mutant):
                lines = range(text_of[file].count("\n", 0, mutant.start) + 1, text_of[file].count("\n", 0, mutant.end) + 2)
                return any((file, line) in bad for line in lines)
            rest = {file: {n: m for n, m in of_file.items() if not is_bad(file, m)} for file, of_file in wanted.items()}
            if sum(map(len, rest.values())) == sum(map(len, wanted.values())):
                raise SystemExit(f"{output} does not compile, and not because of a mutant:\n{errors[:3000]}")
            wanted = {file: of_file for file, of_file in rest.items() if of_file}
            if not wanted:
                break
        return None, []
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        done = list(pool.map(compile_one, by_unit))
    library = {output: f"lib{re.search(r'CMakeFiles/([^/]+)[.]dir/', output)[1]}.a" for output in by_unit}
    objects = [(target, library[output], output) for output, (target, _) in zip(by_unit, done) if target]
    return objects, sorted(number for _, numbers in done for number in numbers)


class Tests:
    """The build's tests, with programs that hold the mutants."""

    def __init__(self, build, names, objects):
        self.tests, self.seconds = {}, {}
        programs = {}

        def with_mutants(word):
            path = pathlib.Path(word)
            if path.parent != build.folder or not os.access(path, os.X_OK):
                return word
            if path.name not in programs:
                programs[path.name] = str(self.program(build, path, objects))
            return programs[path.name]
        for name, test in build.tests().items():
            if name in names:
                self.tests[name] = test
                test.command = [with_mutants(word) for word in test.command]

    @staticmethod
    def program(build, path, objects):
        if path.name != "pptrain":
            return build.program(path.name, objects)
        for whole in ("pptrain_whole", "pptrain_cuda"):  # which pptrain starts from its own folder
            if (build.folder / whole).exists():
                build.program(whole, objects)
        return shutil.copy2(path, build.to)

    def passes(self, name, number, limit):
        test = self.tests[name]
        # The first failure is enough.
        first = "-f" if any(word.endswith(".py") for word in test.command) else "--abort"
        process = subprocess.Popen([*test.command, first], env=os.environ | test.environment | {"PPTRAIN_MUTANT": str(number)},
                                   cwd=test.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   start_new_session=True)
        try:
            return process.wait(limit) == 0
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # ranks too
            process.wait()
            return False

    def measure(self, name, jobs):
        """Whether the test passes without a mutant, also beside itself; as in scripts/test.sh, at the second time at the latest.
        Its time sets the limit for runs with one."""
        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            passed = list(pool.map(lambda _: self.passes(name, 0, 900), range(jobs)))
        self.seconds[name] = time.monotonic() - begin
        return all(passed) or self.passes(name, 0, 900)

    def killer(self, file, number):
        """The first test that fails, or None."""
        for name in sorted(cover_of(file), key=lambda name: name in self.tests and not self.tests[name].is_quick):
            if name in self.seconds and not self.passes(name, number, max(20, 5 * self.seconds[name])):
                return name
        return None


def describe(file, mutant):
    original = (ROOT / file).read_text()[mutant.start:mutant.end]
    return f"{file}:{mutant.line}: {mutant.what}: {' '.join(original.split())}  ->  {' '.join(mutant.changed.split()) or '(nothing)'}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--base", help="lines that changed since this commit (default: since the branch left main)")
    parser.add_argument("--all", action="store_true", help="every line")
    parser.add_argument("--jobs", type=int, default=2, help="mutants that are tried at once")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no further mutant after so many")
    parser.add_argument("--into", type=pathlib.Path, help="folder for what is compiled (default: mutants in the build)")
    parser.add_argument("--tests", help="of the covering tests these alone, with commas between them")
    parser.add_argument("paths", nargs="*", default=FOLDERS)
    options = parser.parse_args()
    lines = None if options.all else changed_lines(options.base or git("merge-base", "HEAD", "main").strip(), options.paths)
    build = Build(options.build, (options.into or options.build / "mutants").resolve())
    chosen = dict(enumerate(choose(options.paths, lines, options.mutants, options.seed, build.units), 1))
    if not chosen:
        print("no line that can be mutated" + ("" if options.all else " changed; --all takes every line"))
        return 0
    begin = time.monotonic()
    objects, numbers = compile_mutants(build, chosen)
    print(f"{len(numbers)} mutants compile, of {len(chosen)} chosen (seed {options.seed}); {time.monotonic() - begin:.0f} s", flush=True)
    only = options.tests.split(",") if options.tests else None
    names = {name for number in numbers for name in cover_of(chosen[number][0]) if only is None or name in only}
    tests = Tests(build, names, objects)
    failing = [name for name in sorted(tests.tests) if not tests.measure(name, options.jobs)]
    if failing:
        print(f"without a mutant these fail: {', '.join(failing)}")
        return 2
    survivors, tried, quick = [], 0, 0

    def killer(number):
        in_time = time.monotonic() - begin <= 60 * options.minutes
        return (in_time, tests.killer(chosen[number][0], number) if in_time else None)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for number, (was_tried, name) in zip(numbers, pool.map(killer, numbers)):
            tried += was_tried
            quick += name is not None and tests.tests[name].is_quick
            if was_tried and name is None:
                survivors.append(number)
                print(f"survived: {describe(*chosen[number])}", flush=True)
    for name, seconds in sorted(tests.seconds.items()):
        print(f"{name}: {seconds:.1f} s without a mutant")
    killed = tried - len(survivors)
    print(f"{killed} of {tried} mutants killed ({100 * killed / max(tried, 1):.0f} %), {quick} of them by a quick test "
          f"({100 * quick / max(tried, 1):.0f} %); {len(survivors)} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
