#!/usr/bin/env bash
# Makes a Python wheel that puts pptrain on PATH; LibTorch is the one of the wheel torch, on which it depends.
#   scripts/wheel.sh [--out DIR]           DIR is dist unless given; prints the wheel's path
# Built without MPI: ranks of mpirun, srun and torchrun meet over TCP. With nvcc on PATH it has CUDA.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

out=$root/dist
while (($#)); do
  case $1 in
    --out) (($# > 1)) || exit_code=2 die "--out needs a folder" ; out=$(realpath -m -- "$2") && shift 2 ;;
    -h | --help) sed -n '2,4s/^# *//p' "$0" && exit ;;
    *) exit_code=2 die "unknown argument $1; see scripts/wheel.sh --help" ;;
  esac
done

lock_checkout
ensure_packages
ensure_toolchain
build package pptrain
unlock_checkout
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
install_package "$stage" pptrain libraries
torch=$(torch_dir)
version_file=$torch/version.py
torch_version=$(sed -n "s/^__version__ = '\([0-9.]*\).*/\1/p" "$version_file")
[[ -n $torch_version ]] || die "$version_file does not say which version of torch this is"
python3 "$scripts/packaging/wheel.py" "$stage" "$(project_version)" "$torch_version" "$out"
