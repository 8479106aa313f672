#!/usr/bin/env bash
# Makes a Python wheel that puts pptrain on PATH. It depends on the wheel torch and uses its LibTorch.
#   scripts/wheel.sh [--out DIR]           DIR is dist unless given; prints the wheel's path
# Built without MPI: ranks of a launcher meet over TCP (mpirun needs -x MASTER_ADDR=HOST -x MASTER_PORT=PORT).
# With nvcc on PATH it has CUDA.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

begin_package "$@"
install_package "$stage" pptrain libraries
version_file=$(torch_dir)/version.py
torch_version=$(sed -n "s/^__version__ = '\([0-9.]*\).*/\1/p" "$version_file")
[[ -n $torch_version ]] || die "$version_file does not say which version of torch this is"
python3 "$scripts/packaging/wheel.py" "$stage" "$(project_version)" "$torch_version" "$out"
