"""scripts/mutants.py on a small text: what it changes, what it leaves unchanged, and that the schema compiles and acts; also the
table of tests in scripts/mutate.py."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import mutants
import mutate

TEXT = r'''// a < b, 1 + 1
#include <vector>
#define TWICE(x) (x * 2)
namespace n {
constexpr int fixed = 3 + 4;
int calls = 0;
void set(int a, int b) { calls += 10 * a - b; }
void note(int a) { calls += a; }
/* if (x < y) */
int work(int a, int b) {
  const std::vector<int> list = {a, b};
  const char* text = "a < b" R"(c + d)";
  static_assert(sizeof(int) >= 4);
  if (a < b && text != nullptr) {
    note(5);
  }
  if (list.empty()) throw 1 + 1;
  for (int i = 0; i < 3; ++i) a += i;
  if (b > a) set(a, b);
  return std::min(a - b, 7);
}
}  // namespace n
'''


def of(text):
    return [(m.what, text[m.start:m.end], m.changed) for m in mutants.find_mutants(text)]


class Mutants(unittest.TestCase):
    def test_what_is_changed(self):
        condition = "a < b && text != nullptr"
        found = of(TEXT)
        for mutant in [("< -> <=", condition, "a <= b && text != nullptr"), ("&& -> ||", condition, "a < b || text != nullptr"),
                       ("negated condition", condition, f"!({condition})"), ("call left out", "note(5);", ""),
                       ("5 -> 6", "5", "6"), ("< -> <=", "i < 3", "i <= 3"), ("+= -> -=", "calls += a", "calls -= a"),
                       ("min -> max", "std::min(a - b, 7)", "std::max(a - b, 7)"), ("- -> +", "a - b", "a + b"),
                       ("arguments swapped", "set(a, b)", "set(b, a)")]:
            with self.subTest(mutant):
                self.assertIn(mutant, found)

    def test_what_is_left_alone(self):
        lines = TEXT.splitlines()
        untouched = {i for i, line in enumerate(lines, 1)
                     if any(word in line for word in ("//", "#", "/*", "constexpr", "static_assert", "text =", "throw"))}
        touched = {m.line for m in mutants.find_mutants(TEXT)}
        self.assertFalse(touched & untouched - {17}, touched & untouched)
        self.assertGreater(len(touched), 4)
        throwing = [m for m in mutants.find_mutants(TEXT) if m.line == 17]
        self.assertTrue(all(m.what == "negated condition" for m in throwing), throwing)

    def test_arguments_of_a_symmetric_function_stay(self):
        self.assertEqual([what for what, region, _ in of(TEXT) if "std::min" in region and what == "arguments swapped"], [])

    def test_templates_are_no_comparisons(self):
        self.assertEqual(of("void f() {\n  std::map<int, std::vector<int>> m;\n  g<int>();\n}\n"), [])

    @unittest.skipUnless(shutil.which("g++"), "no g++")
    def test_the_schema_compiles_and_each_mutant_acts(self):
        numbered = dict(enumerate(mutants.find_mutants(TEXT), 1))
        text, taken = mutants.schema(TEXT, numbered)
        self.assertEqual(text.count("\n"), TEXT.count("\n"))
        self.assertGreater(len(taken), len(numbered) // 2)
        program = ("#include <algorithm>\n#include <cstdio>\n#include <cstdlib>\n"
                   "static bool pptrain_mutant(int n) { const char* m = std::getenv(\"PPTRAIN_MUTANT\"); return m && std::atoi(m) == n; }\n"
                   + text + "int main() { for (int a : {1, 9}) { int r = n::work(a, 4); std::printf(\"%d %d \", r, n::calls); } }\n")
        with tempfile.TemporaryDirectory() as folder:
            source, binary = pathlib.Path(folder, "a.cpp"), pathlib.Path(folder, "a")
            source.write_text(program)
            done = subprocess.run(["g++", "-std=c++20", "-o", binary, source], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)

            def output(number):
                return subprocess.run([binary], capture_output=True, text=True, env=os.environ | {"PPTRAIN_MUTANT": str(number)}).stdout
            original = output(0)
            seen = {numbered[n].what for n in taken if output(n) != original}
        self.assertLessEqual({"&& -> ||", "negated condition", "call left out", "min -> max", "+= -> -="}, seen)


class Cover(unittest.TestCase):
    def test_every_file_is_covered_by_tests_that_exist(self):
        texts = [file.read_text() for file in (mutate.ROOT / "test").rglob("CMakeLists.txt")]
        names = {name for text in texts for name in re.findall(r"pptrain_(?:test\(NAME |python_test\()(\w+)", text)}
        with_clock = {name for text in texts for name in re.findall(r"pptrain_test\(NAME (\w+)[^()]*\bCLOCK_CASES\b", text)}
        for prefix, tests in mutate.COVER.items():
            self.assertLessEqual(set(tests), names | {f"{name}_clock" for name in with_clock}, prefix)
        files = [file for folder in mutate.FOLDERS for file in (mutate.ROOT / folder).rglob("*.cpp")]
        self.assertGreater(len(files), 100)
        self.assertEqual([file for file in files if not mutate.cover_of(str(file.relative_to(mutate.ROOT)))], [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
