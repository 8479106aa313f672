"""The includes that headers and sources may have, so that a build stays quick. The test needs no compiler.

Our headers that many files include must not include headers that cost seconds in each file. Seconds of one compiler
(measured with GCC 12): ATen/ATen.h 11, torch/torch.h 27, ATen/core/Tensor.h 3, nlohmann/json.hpp 1.5.
"""

import collections
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 and pathlib.Path(sys.argv[1]).is_dir() else pathlib.Path(__file__).parents[2]
FOLDERS = ("core", "parallel", "models", "app", "test")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)

# Not in our sources or headers, but for those that need it: all of LibTorch at once.
EVERYTHING = re.compile(r"^(ATen/ATen\.h|ATen/Functions\.h|torch/(?!csrc/distributed|(.*/)?version\.h).*|ATen/core/ivalue.*)$")
NEEDED = {"test/support/torch_adamw.cpp", "test/gpu/emulator/gemm.cpp", "test/gpu/bench/profile.cpp"}
# Not in headers: needed only in sources. CLI/App.hpp is the type of a command's argument.
HEAVY = re.compile(r"^(nlohmann/json\.hpp|spdlog/spdlog\.h|toml\+\+/.*|CLI/CLI\.hpp|regex|iostream|ATen/core/IListRef\.h|ATen/TensorIndexing\.h)$")
# The rule does not apply to headers that fewer files than this include, directly or not.
MANY = 12


def files(*suffixes):
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)


def includes(path):
    return INCLUDE.findall(path.read_text(encoding="utf-8"))


class Includes(unittest.TestCase):
    def setUp(self):
        self.direct = {str(path.relative_to(ROOT)): includes(path) for path in files(".h", ".cpp", ".cu", ".cuh")}
        self.includers = collections.defaultdict(set)  # header: files that include it, at any depth
        for name in self.direct:
            if name.endswith((".cpp", ".cu")):
                self.visit(name, name, set())

    def visit(self, source, name, seen):
        for mark, included in self.direct.get(name, ()):
            if mark == '"' and included in self.direct and included not in seen:
                seen.add(included)
                if included.startswith("test/") or not source.startswith("test/"):  # tests count for their own headers alone
                    self.includers[included].add(source)
                self.visit(source, included, seen)

    def test_nothing_includes_all_of_libtorch(self):
        wrong = [f"{name}: {header}" for name, found in self.direct.items() for _, header in found
                 if name not in NEEDED and EVERYTHING.match(header)]
        self.assertEqual(wrong, [], "include ATen/core/Tensor.h and ATen/ops/NAME.h in its place; tests, test/support/ops.h")

    def test_headers_of_many_files_are_light(self):
        wrong = [
            f"{name} (in {len(self.includers[name])} files): {header}"
            for name, found in self.direct.items()
            if name.endswith(".h") and len(self.includers[name]) >= MANY
            for _, header in found
            if HEAVY.match(header)
        ]
        self.assertEqual(wrong, [], "include it in the source files, and declare types forward in the header")

    def test_headers_are_found(self):
        missing = [
            f"{name}: {header}"
            for name, found in self.direct.items()
            for mark, header in found
            if mark == '"' and "/" in header and header.split("/")[0] in FOLDERS and header not in self.direct
            and not header.endswith((".inc", "page_files.h"))
        ]
        self.assertEqual(missing, [])

    def test_the_graph_is_seen(self):
        self.assertGreater(len(self.includers["core/base/error.h"]), 100)


if __name__ == "__main__":
    unittest.main()
