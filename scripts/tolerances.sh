#!/usr/bin/env bash
# How much room do the tests' bounds leave? Runs all tests that compare with a tolerance (ctest's label `tolerance`) on every
# instruction set that the processor has, with ten seeds each, and prints for each bound the least margin, after all the set-up
# that is missing. Exits with 1 if a test fails or a bound is exceeded.
#   scripts/tolerances.sh [--isa NAME...] [--seeds N] [--first-seed N] [--jobs N] [--record FILE] [--under MARGIN] [NAME]...
# NAME: a regular expression of ctest's names, as core_ or app_mesh_grid (the longest: minutes for each seed and instruction set).
# --isa: all (the default), or some of what `scripts/tolerances.sh --help` lists. --record appends what was measured to FILE and prints the
# table of all that FILE holds, so that a long run may be taken in parts. --under prints only bounds with less margin.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

for argument; do
  [[ $argument != -h && $argument != --help ]] || { sed -n '2,9s/^# *//p' "$0" && exec python3 "$scripts/tolerances.py" --help; }
done
build_tests release
allow_mpirun_as_root
cd "$root"
exec python3 "$scripts/tolerances.py" --build "$(build_dir release)" "$@"
