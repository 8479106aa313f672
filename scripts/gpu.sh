#!/usr/bin/env bash
# One command for a machine with a GPU, CUDA 13, Python with torch 2.11, and nothing else: no packages, no network.
#   scripts/gpu.sh pack [--headers]       here: builds what such a machine lacks, without MPI, into build-gpu/pack;
#                                         --headers adds what a build there needs, in pack/offline
#   scripts/gpu.sh run correct|bench... [--device cuda|cpu] [--out DIR] [--only STEP]... [--quick]
#                                         there: runs it; leaves report.md, report.json and steps.log in DIR (build-gpu/report)
#   PPTRAIN_OFFLINE=1 scripts/gpu.sh build [PROGRAM]...
#                                         there, with a compiler, from a checkout with its pack: builds anew what was packed
# Exit codes of run: 0 all passed, 1 a step failed, 2 bad arguments, 4 nothing can run here (no GPU, no torch, no pack).
# The folder build-gpu/pack is whole: it may be copied alone and run as PACK/scripts/gpu.sh run correct.
# PPTRAIN_PYTHON: the Python that has torch. CUDAARCHS: GPU architectures to compile for, as in CUDAARCHS=90 (default 80;90).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PPTRAIN_PYTHON:-python3}

# Leaves in `built` what is packed: the program, its benchmark, and every test for GPUs that the build has; or those named.
build_programs() {  # build_programs [PROGRAM]...
  built=("${@:-pptrain}")
  build gpu "${built[@]}"
  (($# == 0)) || return 0
  mapfile -t built < <(ninja -C "$(build_dir gpu)" -t targets all | sed 's/:.*//' | grep -xE 'pptrain|gpu_bench|test_gpu_[a-z0-9_]+' | sort -u)
  build gpu "${built[@]}"
}

make_pack() {
  source "$here/lib.sh"
  local -a headers=()
  [[ ${1:-} != --headers ]] || { headers=(--headers) && shift; }
  (($# == 0)) || exit_code=2 die "pack: unknown argument $1; see scripts/gpu.sh --help"
  lock_checkout
  ensure_packages
  ensure_toolchain
  has_command nvcc || die "no nvcc on PATH: a pack for GPUs needs CUDA's compiler"
  build_programs
  python3 -B "$here/gpu/pack.py" --root "$root" --build "$(build_dir gpu)" --torch "$(torch_dir)" "${headers[@]}" "${built[@]}"
}

build_offline() {
  source "$here/lib.sh"
  [[ -n ${PPTRAIN_OFFLINE:-} ]] || exit_code=2 die "build is for machines without a network: set PPTRAIN_OFFLINE=1, or use scripts/build.sh"
  local pack usr program
  pack=$(build_dir gpu)/pack
  usr=$pack/offline/usr
  [[ -d $usr ]] || exit_code=4 die "no headers in $usr: make the pack with scripts/gpu.sh pack --headers, and carry it here"
  # Before the compiler's own folders, and before torch's, which hold another fmt.
  export CPATH=$usr/include${CPATH:+:$CPATH} CMAKE_PREFIX_PATH=$usr
  PATH=$PATH:$(dirname "$(command -v "$python")"):/usr/local/cuda/bin
  [[ -n ${PPTRAIN_TORCH_DIR:-} ]] || PPTRAIN_TORCH_DIR=$("$python" -B "$here/gpu/machine.py") || exit 4
  export PPTRAIN_TORCH_DIR
  local -a missing=()
  mapfile -t missing < <(missing_packages | grep -vxE 'ccache|libopenmpi-dev|openmpi-bin')
  for program in cmake ninja nvcc strip; do has_command "$program" || missing+=("$program"); done
  ((${#missing[@]} == 0)) || exit_code=4 die "without a network nothing is installed; missing here: ${missing[*]}"
  lock_checkout
  build_programs "$@"
  for program in "${built[@]}"; do strip --strip-unneeded -o "$pack/bin/$program" "$(build_dir gpu)/$program"; done
  say "built, and put into ${pack#"$root"/}: ${built[*]}"
}

run_pack() {
  command -v "$python" >/dev/null || {
    echo "pptrain: error: no $python here: a machine with Python and torch is needed, or PPTRAIN_PYTHON" >&2
    exit 4
  }
  exec "$python" -B "$here/gpu/run.py" "$@"
}

if [[ ${1:-} == pack || ${1:-} == build ]] && [[ ! -e $here/lib.sh ]]; then
  echo "pptrain: error: a pack alone can only run: $1 needs the whole checkout" >&2
  exit 4
fi
case ${1:-} in
  pack) shift && make_pack "$@" ;;
  build) shift && build_offline "$@" ;;
  run) shift && run_pack "$@" ;;
  -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0" ;;
  *) echo "pptrain: error: scripts/gpu.sh pack, build or run STEPS; see scripts/gpu.sh --help" >&2 && exit 2 ;;
esac
