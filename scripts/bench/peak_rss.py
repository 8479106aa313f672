"""Runs a command and appends its peak resident memory in bytes, by the kernel's account, as one line to a file.

    peak_rss.py FILE COMMAND...

compare.py starts one in each rank. The command's exit status is passed on.
"""

import os
import sys


def main() -> int:
    report, command = sys.argv[1], sys.argv[2:]
    child = os.posix_spawnp(command[0], command, os.environ)
    _, status, usage = os.wait4(child, 0)
    with open(report, "a") as out:  # appended in one write, so that ranks do not mix
        out.write(f"{usage.ru_maxrss * 1024}\n")
    return os.waitstatus_to_exitcode(status) & 0xFF


if __name__ == "__main__":
    sys.exit(main())
