#!/usr/bin/env bash
# One command for a machine with a GPU, CUDA 13, Python with torch 2.11, and nothing else: no packages, no network.
#   scripts/gpu.sh pack [--headers]       here: builds the programs for such a machine, without MPI: build-gpu/pack.tar.gz;
#                                         --headers adds the files for a build there, pack/offline.tar.gz
#   scripts/gpu.sh run [correct|bench]... [--out DIR] [--only STEP]... [--limit SECONDS] [--device cuda|cpu] [--quick]
#                                         there: runs it, without a name both in 9.5 minutes; writes report.md, report.json and
#                                         steps.log to DIR (build-gpu/report)
#   PPTRAIN_OFFLINE=1 scripts/gpu.sh build [PROGRAM]...
#                                         there, with a compiler, from a checkout with its pack: builds the packed programs anew
# Exit codes of run: 0 all steps that can run here passed, 1 a step failed, 2 bad arguments, 3 no step failed, but time ran out
# before all had run, or none could run, 4 nothing can run here (no GPU, no torch, no sound pack, or its programs do not start).
# run unpacks the archive. The archive is complete: unpacked elsewhere it runs as pack/scripts/gpu.sh run correct.
# PPTRAIN_PYTHON: the Python that has torch. CUDAARCHS: GPU architectures to compile for, as in CUDAARCHS=90 (default 80;90).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PPTRAIN_PYTHON:-python3}

# Sets `built` to the programs to pack: the program, its benchmark, and every test for GPUs of the build; or the named ones.
build_programs() {  # build_programs [PROGRAM]...
  built=("${@:-pptrain}")
  build gpu "${built[@]}"
  (($# == 0)) || return 0
  mapfile -t built < <(ninja -C "$(build_dir gpu)" -t targets all | sed 's/:.*//' | grep -xE 'pptrain|gpu_bench|test_gpu_[a-z0-9_]+' | sort -u)
  build gpu "${built[@]}"
}

make_pack() {
  source "$here/lib.sh"
  export CUDAARCHS=${CUDAARCHS:-"80;90"}  # for any machine that gets the pack
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

# Unpacks the archive if it is newer than the unpacked files.
unpack() {
  local build=$here/../build-gpu
  [[ $build/pack.tar.gz -nt $build/pack/pack.json ]] || return 0
  tar -xzmf "$build/pack.tar.gz" --no-same-owner -C "$build" || {
    rm -f "$build/pack/pack.json"  # so that a part of a pack is never taken for a whole one
    echo "pptrain: error: $(realpath "$build")/pack.tar.gz is damaged: carry it here again" >&2
    exit 4
  }
}

build_offline() {
  source "$here/lib.sh"
  [[ -n ${PPTRAIN_OFFLINE:-} ]] || exit_code=2 die "build is for machines without a network: set PPTRAIN_OFFLINE=1, or use scripts/build.sh"
  local pack usr program
  unpack
  pack=$(build_dir gpu)/pack
  usr=$(build_dir gpu)/offline/usr
  [[ -e $pack/offline.tar.gz ]] ||
    exit_code=4 die "no headers, $pack/offline.tar.gz: make the pack with scripts/gpu.sh pack --headers, and carry it here"
  rm -rf "${usr%/usr}" && mkdir -p "${usr%/usr}"
  tar -xzf "$pack/offline.tar.gz" --no-same-owner -C "${usr%/usr}"
  # Before the compiler's own folders, and before torch's, which have another fmt.
  export CPATH=$usr/include${CPATH:+:$CPATH} CMAKE_PREFIX_PATH=$usr
  # This Python's CMake first: the system's may be too old.
  PATH=$(dirname "$(command -v "$python")"):$PATH:/usr/local/cuda/bin
  [[ -n ${PPTRAIN_TORCH_DIR:-} ]] || PPTRAIN_TORCH_DIR=$("$python" -B "$here/gpu/machine.py") || exit 4
  export PPTRAIN_TORCH_DIR
  local -a missing=()
  mapfile -t missing < <(missing_packages | grep -vxE 'ccache|libopenmpi-dev|openmpi-bin')
  for program in cmake ninja nvcc strip tar; do has_command "$program" || missing+=("$program"); done
  ((${#missing[@]} == 0)) || exit_code=4 die "without a network nothing is installed; missing here: ${missing[*]}"
  lock_checkout
  build_programs "$@"
  "$python" -B "$here/gpu/pack.py" --replace --root "$root" --build "$(build_dir gpu)" --torch "$PPTRAIN_TORCH_DIR" "${built[@]}"
}

run_pack() {
  command -v "$python" >/dev/null || {
    echo "pptrain: error: no $python here: a machine with Python and torch is needed, or PPTRAIN_PYTHON" >&2
    exit 4
  }
  unpack
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
  -h | --help) sed -n '2,13s/^# \{0,1\}//p' "$0" ;;
  *) echo "pptrain: error: scripts/gpu.sh pack, build or run STEPS; see scripts/gpu.sh --help" >&2 && exit 2 ;;
esac
