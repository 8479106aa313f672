"""A filter without a matching case ends a test executable with an error, even if other filters find cases.

Usage: filters_test.py TEST_SUPPORT [unittest arguments]
"""

import subprocess
import sys
import unittest

PROGRAM = sys.argv.pop(1)


class Filters(unittest.TestCase):
    def code(self, *arguments):
        return subprocess.run([PROGRAM, *arguments], capture_output=True).returncode

    def test_filters_that_find_cases(self):
        self.assertEqual(self.code("[#covering_test]"), 0)

    def test_filters_that_find_none(self):
        for filters in ("[#no_such_file]", "no such case", "[#covering_test][no_such_tag]", "[#covering_test],[#no_such_file]",
                        "[#no_such_file],[#covering_test]"):
            with self.subTest(filters):
                self.assertNotEqual(self.code(filters), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
