"""An entry of a CMakeLists.txt runs every class of tests in Python, by name or with all others of its file.

Usage: classes_test.py BUILD_FOLDER CTEST
"""

import ast
import collections
import json
import pathlib
import subprocess
import sys
import unittest

CTEST = sys.argv.pop(2)
BUILD = sys.argv.pop(1)
BY_HAND = {"python_tokenizers_test.py": {"Parts"}}  # takes minutes


def classes_with_tests(script):
    """Names of the classes with a method test_..."""
    tree = ast.parse(pathlib.Path(script).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef)
            and any(isinstance(part, ast.FunctionDef) and part.name.startswith("test") for part in node.body)}


class Classes(unittest.TestCase):
    def test_each_is_run(self):
        listed = subprocess.run([CTEST, "--test-dir", BUILD, "--show-only=json-v1"], capture_output=True, text=True, check=True).stdout
        named = collections.defaultdict(set)  # by script
        for test in json.loads(listed)["tests"]:
            script = next((word for word in test.get("command", []) if word.endswith("_test.py")), None)
            if script:
                classes = classes_with_tests(script)
                chosen = classes & set(test["command"])
                named[script] |= chosen or classes
        self.assertGreater(len(named), 30)
        for script, chosen in named.items():
            with self.subTest(script):
                self.assertEqual(chosen, classes_with_tests(script) - BY_HAND.get(pathlib.Path(script).name, set()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
