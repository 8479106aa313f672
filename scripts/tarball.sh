#!/usr/bin/env bash
# Makes a tarball with LibTorch that runs in any folder after unpacking.
#   scripts/tarball.sh [--out DIR]         DIR is dist unless given; prints the tarball's path
# Built without MPI: ranks of a launcher meet over TCP (mpirun needs -x MASTER_ADDR=HOST -x MASTER_PORT=PORT).
# It needs the glibc and libstdc++ of this system or newer.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

begin_package "$@"
name=pptrain-$(project_version)-linux-$(uname -m)
install_package "$stage/$name" pptrain libraries torch
mkdir -p "$out"
tar -C "$stage" --owner=0 --group=0 --sort=name -czf "$out/$name.tar.gz" "$name"
echo "$out/$name.tar.gz"
