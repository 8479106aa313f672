"""Counts how large and how tangled the source is; no gate.

Usage: house.py [--commit COMMIT]      the working tree, or a commit beside it
"""

import argparse
import collections
import pathlib
import re
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
FLOORS = ("app", "core", "models", "parallel")
SOURCES = (".h", ".cpp", ".cu", ".cuh", ".inc")
HEADERS = (".h", ".cuh", ".inc")
INCLUDE = re.compile(r'^#include "((?:' + "|".join(FLOORS) + r')/[^"]+)"', re.MULTILINE)
TYPE = re.compile(r"^\s*(?:template <[^>]*>\s*)?(?:struct|class|enum class|enum|union)\s+(?:alignas\([^)]*\)\s*)?\w+[^;(){}=]*\{", re.MULTILINE)
# How a job lies on its ranks: the structs that the review of e4d8a66 counted. Matched as whole names, but not in rooms that know no ranks.
LAYOUTS = ("DistributedSection", "MeshShape", "ScheduleSpec", "ShardOptions", "LowerOptions", "ShardPolicy", "StageRanks", "Divisions",
           "Sharding", "ParallelShape", "BatchShape", "Workload", "PlanBase", "Choice", "Plan", "Layout", "Estimate", "MeshCandidate",
           "Candidate", "ShapeKey", "TracedRun", "LoaderOptions")
WITHOUT_RANKS = ("core/kernels/", "core/nn/", "core/tokenizer/")
# Options with words as values; a comparison of one with a literal.
WORD = re.compile(r'(?:\b(?:[a-z_]+[.]|[a-z_]+->)+[a-z_]+(?:\(\))?|\b[a-z_]+)\s*[!=]=\s*"[a-z0-9_]+"')
OPTIONS = re.compile(r"\b(?:dtype|device|recompute|init|arch|name|cp_kind|reduce_grads|pp_schedule|pp_split|format|packing|lengths|resume|"
                     r"optimizer|schedule|on_divergence|rope_type|bad_lines|packed|target_modules)\b")


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def room(file):
    parts = file.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def circles(edges):
    """The sets of rooms that include each other, directly or not."""
    reach = {a: set(b) for a, b in edges.items()}
    rooms = sorted(set(reach) | {b for to in reach.values() for b in to})
    for via in rooms:
        for a in rooms:
            if via in reach.get(a, ()):
                reach[a] |= reach.get(via, set())
    found = []
    for a in rooms:
        circle = {b for b in reach.get(a, ()) if a in reach.get(b, ())}
        if len(circle) > 1 and circle not in found:
            found.append(circle)
    return found


def count(root):
    files = [f for f in subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.split()]
    sources = {f: (root / f).read_text() for f in files if f.startswith(FLOORS) and f.endswith(SOURCES)}
    code = {f: without_comments(text) for f, text in sources.items()}
    edges = collections.defaultdict(set)
    for file, text in sources.items():
        edges[room(file)] |= {room(i) for i in INCLUDE.findall(text)} - {room(file)}
    structs = {name for file, text in code.items() if not file.startswith(WITHOUT_RANKS) for name in LAYOUTS
               if re.search(rf"\b(?:struct|class) {name}\b[^;(]*\{{", text)}
    words = sum(len([m for m in WORD.findall(text) if OPTIONS.search(m)]) for file, text in code.items()
                if file.startswith(("app/", "models/", "parallel/")))
    tests = [f for f in files if f.startswith("test/")]
    return {
        "rooms in a circle": sum(map(len, circles(edges))),
        "rooms": len({room(f) for f in sources}),
        "structs that describe a layout": len(structs),
        "files that name `cp`": sum(1 for text in code.values() if re.search(r"\bcp\b", text)),
        "types in headers": sum(len(TYPE.findall(text)) for file, text in code.items() if file.endswith(HEADERS)),
        "source files": len(sources),
        "source lines": sum(text.count("\n") for text in sources.values()),
        "test lines, C++": sum((root / f).read_text().count("\n") for f in tests if f.endswith(SOURCES)),
        "test lines, Python and shell": sum((root / f).read_text().count("\n") for f in tests if f.endswith((".py", ".sh"))),
        "README words": sum(len((root / f).read_text().split()) for f in files if f.endswith("README.md")),
        "comparisons with words of options": words,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", help="counted beside the working tree")
    options = parser.parse_args()
    columns = [("here", count(ROOT))]
    if options.commit:
        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder) / "tree"
            subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, options.commit], cwd=ROOT, check=True)
            try:
                columns.insert(0, (options.commit[:12], count(tree)))
            finally:
                subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
    print(f"{'':36}" + "".join(f"{name:>14}" for name, _ in columns))
    for key in columns[0][1]:
        print(f"{key:36}" + "".join(f"{of[key]:14,}" for _, of in columns))


if __name__ == "__main__":
    main()
