#!/usr/bin/env bash
# How much room do the tests' bounds leave? Runs all tests that compare with a tolerance (ctest's label `tolerance`) on every
# instruction set of the processor, with ten seeds each, after all the set-up that is missing. Prints the least margin of each
# bound. Exits with 1 if a test fails or a bound is exceeded.
#   scripts/tolerances.sh [--isa NAME...] [--seeds N] [--first-seed N] [--jobs N] [--record FILE] [--under MARGIN] [NAME]...
# NAME: a regular expression of ctest's names, as core_ or app_mesh_grid (the longest: minutes for each seed and instruction set).
# --isa: all (the default), or some names from `scripts/tolerances.sh --help`. --record appends the margins to FILE and prints the table of
# all margins in FILE, so that a long run can be divided into parts. --under prints only bounds with less margin.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

for argument; do
  [[ $argument != -h && $argument != --help ]] || { sed -n '2,9s/^# *//p' "$0" && exec python3 "$scripts/tolerances.py" --help; }
done
build_tests release
allow_mpirun_as_root
exec python3 "$scripts/tolerances.py" --build "$(build_dir release)" "$@"
