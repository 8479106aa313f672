#!/usr/bin/env python3
"""Prints what a build took: task-seconds by folder, and its longest units, from Ninja's log.

    scripts/bench/build_times.py [BUILD_FOLDER] [--longest N]

A task-second is a second of one compiler, so two cores take half as long. Ninja's log holds the last time of each output; after a
build from nothing without a compiler cache (CCACHE_DISABLE=1) the sums are those of a cold build.
"""

import argparse
import collections
import pathlib


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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).parents[2] / "build")
    parser.add_argument("--longest", type=int, default=12)
    arguments = parser.parse_args()
    times = tasks(arguments.build)
    folders = collections.defaultdict(lambda: [0.0, 0])
    for seconds, output in times:
        entry = folders[folder_of(output)]
        entry[0] += seconds
        entry[1] += 1
    print(f"{'folder':36} {'tasks':>6} {'seconds':>8}")
    for folder, (seconds, count) in sorted(folders.items(), key=lambda entry: -entry[1][0]):
        print(f"{folder:36} {count:6} {seconds:8.1f}")
    print(f"{'all':36} {len(times):6} {sum(seconds for seconds, _ in times):8.1f}")
    print()
    for seconds, output in sorted(times, reverse=True)[: arguments.longest]:
        print(f"{seconds:8.1f} s  {output}")


if __name__ == "__main__":
    main()
