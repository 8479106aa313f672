"""How many compilers and tests scripts/lib.sh runs at once on a machine, and what it refuses without a network."""

import os
import pathlib
import subprocess
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


def said(function, cores=8, mib=100_000):
    """The output of a function of lib.sh on such a machine."""
    commands = f"source {SCRIPTS}/lib.sh; nproc() {{ echo {cores}; }}; available_mib() {{ echo {mib}; }}; {function}"
    return int(subprocess.run(["bash", "-euo", "pipefail", "-c", commands], capture_output=True, text=True, check=True).stdout)


class Lib(unittest.TestCase):
    def test_a_compiler_for_each_core_where_memory_suffices(self):
        self.assertEqual([said("jobs", cores=cores) for cores in (1, 2, 16)], [1, 2, 16])

    def test_fewer_compilers_where_memory_is_short(self):
        self.assertEqual([said("jobs", mib=mib) for mib in (500, 4_000, 4_100, 16_400, 60_000)], [1, 1, 2, 8, 8])

    def test_memory_is_that_of_the_host_at_most(self):
        found = subprocess.run(["bash", "-c", f"source {SCRIPTS}/lib.sh; available_mib"], capture_output=True, text=True).stdout
        total = int(pathlib.Path("/proc/meminfo").read_text().split()[1]) // 1024
        self.assertTrue(0 < int(found) <= total, found)

    def test_tests_at_once(self):
        self.assertEqual([said("test_slots", cores=cores) for cores in (1, 2, 4, 64)], [4, 6, 12, 24])

    def test_without_a_network_only_a_missing_ccache_is_no_reason_to_refuse(self):
        def ensured(missing):
            commands = f"source {SCRIPTS}/lib.sh; missing_packages() {{ printf '%s\\n' {missing}; }}; ensure_packages"
            return subprocess.run(["bash", "-euo", "pipefail", "-c", commands], capture_output=True, text=True,
                                  env={**os.environ, "PPTRAIN_OFFLINE": "1", "PATH": "/usr/bin:/bin"})
        self.assertEqual(ensured("ccache").returncode, 0, ensured("ccache").stderr)
        for missing in ("g++", "ccache g++"):
            self.assertEqual(ensured(missing).returncode, 1)
            self.assertIn(f"nothing is downloaded; missing: {missing}\n", ensured(missing).stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
