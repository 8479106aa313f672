#!/usr/bin/env bash
# Builds pptrain, with all the set-up that is missing. Leaves build/pptrain (release) or build-PRESET/pptrain.
#   scripts/build.sh [--preset release|debug|asan|tsan] [TARGET...]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

preset=release
targets=()
while (($#)); do
  case $1 in
    --preset) preset=${2:-} && shift $(($# > 1 ? 2 : 1)) ;;
    --preset=*) preset=${1#*=} && shift ;;
    -h | --help) sed -n '2,3s/^# *//p' "$0" && exit ;;
    -*) exit_code=2 die "unknown option $1; see scripts/build.sh --help" ;;
    *) targets+=("$1") && shift ;;
  esac
done
check_preset "$preset"
((${#targets[@]})) || targets=(pptrain)

lock_checkout
ensure_packages
ensure_toolchain
build "$preset" "${targets[@]}"
