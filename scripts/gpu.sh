#!/usr/bin/env bash
# One command for a machine with a GPU, CUDA 13, Python with torch 2.11, and nothing else: no packages, no network.
#   scripts/gpu.sh pack                   here: builds what such a machine lacks, without MPI, into build-gpu/pack
#   scripts/gpu.sh run correct|bench... [--device cuda|cpu] [--out DIR] [--only STEP]... [--quick]
#                                         there: runs it; leaves report.md, report.json and steps.log in DIR (build-gpu/report)
# Exit codes of run: 0 all passed, 1 a step failed, 2 bad arguments, 4 nothing can run here (no GPU, no torch, no pack).
# The folder build-gpu/pack is whole: it may be copied alone and run as PACK/scripts/gpu.sh run correct.
# PPTRAIN_PYTHON: the Python that has torch. CUDAARCHS: GPU architectures to compile for, as in CUDAARCHS=90 (default 80;90).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# What is packed, where the build has such a target.
programs=(pptrain test_gpu_kernels test_gpu_model gpu_bench)

make_pack() {
  source "$here/lib.sh"
  (($# == 0)) || exit_code=2 die "pack takes no arguments; see scripts/gpu.sh --help"
  lock_checkout
  ensure_packages
  ensure_toolchain
  has_command nvcc || die "no nvcc on PATH: a pack for GPUs needs CUDA's compiler"
  local dir program
  dir=$(build_dir gpu)
  build gpu pptrain
  local -a existing=()
  for program in "${programs[@]}"; do
    if ninja -C "$dir" -t query "$program" >/dev/null 2>&1; then existing+=("$program"); fi
  done
  build gpu "${existing[@]}"
  python3 "$here/gpu/pack.py" --root "$root" --build "$dir" --torch "$(torch_dir)" "${existing[@]}"
}

run_pack() {
  local python=${PPTRAIN_PYTHON:-python3}
  command -v "$python" >/dev/null || {
    echo "pptrain: error: no $python here: a machine with Python and torch is needed, or PPTRAIN_PYTHON" >&2
    exit 4
  }
  exec "$python" -B "$here/gpu/run.py" "$@"
}

if [[ -n ${PPTRAIN_OFFLINE:-} ]]; then
  echo "pptrain: error: PPTRAIN_OFFLINE is set, but building without a network from packed headers does not exist:" \
    "carry the binaries that scripts/gpu.sh pack makes, and unset it" >&2
  exit 2
fi
case ${1:-} in
  pack) shift && make_pack "$@" ;;
  run) shift && run_pack "$@" ;;
  -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0" ;;
  *) echo "pptrain: error: scripts/gpu.sh pack, or scripts/gpu.sh run STEPS; see scripts/gpu.sh --help" >&2 && exit 2 ;;
esac
