#!/usr/bin/env bash
# Makes a tarball that runs wherever it is unpacked, with LibTorch in it.
#   scripts/tarball.sh [--out DIR]         DIR is dist unless given; prints the tarball's path
# Built without MPI: ranks of mpirun, srun and torchrun meet over TCP. It needs the glibc and libstdc++ of this system or newer.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

out=$root/dist
while (($#)); do
  case $1 in
    --out) (($# > 1)) || exit_code=2 die "--out needs a folder" ; out=$(realpath -m -- "$2") && shift 2 ;;
    -h | --help) sed -n '2,4s/^# *//p' "$0" && exit ;;
    *) exit_code=2 die "unknown argument $1; see scripts/tarball.sh --help" ;;
  esac
done

lock_checkout
ensure_packages
ensure_toolchain
build package pptrain
unlock_checkout
name=pptrain-$(project_version)-linux-$(uname -m)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
install_package "$stage/$name" pptrain libraries torch
mkdir -p "$out"
tar -C "$stage" --owner=0 --group=0 --sort=name -czf "$out/$name.tar.gz" "$name"
echo "$out/$name.tar.gz"
