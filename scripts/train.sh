#!/usr/bin/env bash
# Trains a job, after all the set-up that is missing: packages, LibTorch, the build.
#   scripts/train.sh [JOB.toml] [--set section.key=value]...      JOB is configs/shakespeare.toml unless given
# All ranks run in one process here. On several machines start build/pptrain under mpirun or srun: docs/launching.md.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,4s/^# *//p' "$0"
  exit
fi
job=configs/shakespeare.toml
[[ $# -eq 0 || $1 == -* ]] || { job=$1 && shift; }
if [[ ! -f $job && $job == configs/* && -f $root/$job ]]; then
  cd "$root"  # its output goes to the project's folder too
fi
[[ -f $job ]] || exit_code=2 die "no such job file: $job"

lock_checkout
ensure_packages
ensure_toolchain
build release pptrain
unlock_checkout
exec "$root/build/pptrain" --config "$job" "$@"
