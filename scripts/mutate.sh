#!/usr/bin/env bash
# Would the tests notice? Makes small changes (mutants) to the code, one at a time, and runs the tests that cover them. Prints
# the mutants that no test noticed (survivors) and the score, after all the set-up that is missing.
#   scripts/mutate.sh [--mutants N] [--seed S] [--jobs N] [--base COMMIT | --all] [PATH]...
# By default 200 mutants of the lines that changed since the branch left main (--base: since COMMIT; --all: of every line), in
# app/train, app/rank, core/optim, core/data, parallel and models, or in the PATHs. The same seed and code give the same mutants.
# --jobs mutants (default 2) are tried at once.
# Exits with 1 if one survived, with 2 if the tests fail without a mutant.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

for argument; do
  [[ $argument != -h && $argument != --help ]] || { sed -n '2,8s/^# *//p' "$0" && exit; }
done
build_tests release
cd "$root"
exec python3 "$scripts/mutate.py" --build "$(build_dir release)" "$@"
