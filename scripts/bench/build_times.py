#!/usr/bin/env python3
"""Prints the times of a build from Ninja's log: task-seconds by folder, for tests and program apart, and its longest units.

    scripts/bench/build_times.py [BUILD_FOLDER] [--longest N]

A task-second is a second of one compiler, so two cores take half as long. Ninja's log holds the last time of each output; after a
build from nothing without a compiler cache (CCACHE_DISABLE=1) the sums are those of a cold build.
"""

import argparse
import collections
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def tasks(build):
    """(seconds, output) of each output in the log, the newest entry of each; one command's outputs count once."""
    newest = {}
    for line in (build / ".ninja_log").read_text().splitlines():
        if line.startswith("#"):
            continue
        start, end, _, output, command = line.split("\t")
        newest[output] = (int(start), int(end), command)
    once = {}
    for output, (start, end, command) in newest.items():
        once.setdefault((start, end, command), output)
    return [((end - start) / 1000, output) for (start, end, _), output in once.items()]


def folder_of(output):
    """core/nn of core/nn/CMakeFiles/pptrain_nn.dir/Unity/unity_0_cxx.cxx.o; the test's name of a program."""
    path = output.split("/CMakeFiles/")[0] if "/CMakeFiles/" in output else output
    if output.startswith("CMakeFiles/"):
        return "precompiled headers"
    parts = pathlib.PurePath(path).parts
    return "/".join(parts[:2]) if len(parts) > 1 or "/CMakeFiles/" in output else "programs (linking)"


def inputs(build, target):
    """The target and everything that Ninja makes it from."""
    ninja = shutil.which("ninja") or ROOT / ".venv/bin/ninja"
    return {target, *subprocess.run([ninja, "-C", build, "-t", "inputs", target], capture_output=True, text=True, check=True).stdout.split("\n")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", nargs="?", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--longest", type=int, default=12)
    arguments = parser.parse_args()
    build = arguments.build
    program, everything = inputs(build, "pptrain"), inputs(build, "all")  # the log also has outputs that no longer exist
    times = [(seconds, output) for seconds, output in tasks(build) if output in everything]
    folders = collections.defaultdict(lambda: [0.0, 0])
    for seconds, output in times:
        entry = folders[folder_of(output)]
        entry[0] += seconds
        entry[1] += 1
    print(f"{'folder':36} {'tasks':>6} {'seconds':>8}")
    for folder, (seconds, count) in sorted(folders.items(), key=lambda entry: -entry[1][0]):
        print(f"{folder:36} {count:6} {seconds:8.1f}")
    for what, of_program in (("program", True), ("tests", False)):
        part = [seconds for seconds, output in times if (output in program) == of_program]
        print(f"{what:36} {len(part):6} {sum(part):8.1f}")
    print()
    for seconds, output in sorted(times, reverse=True)[: arguments.longest]:
        print(f"{seconds:8.1f} s  {output}")


if __name__ == "__main__":
    main()
