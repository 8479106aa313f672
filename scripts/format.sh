#!/usr/bin/env bash
# Formats every C++ and CUDA file of the project in place. --check only names the files that would change, and then fails.
#   scripts/format.sh [--check]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

check=false
case ${1:-} in
  "") ;;
  --check) check=true ;;
  -h | --help) sed -n '2,3s/^# *//p' "$0" && exit ;;
  *) exit_code=2 die "unknown option $1; see scripts/format.sh --help" ;;
esac

format=clang-format
if [[ $(clang-format --version 2>/dev/null) != *"version 14."* ]]; then
  lock_checkout
  [[ -n $(find_python) ]] || ensure_packages
  ensure_requirements requirements-format
  unlock_checkout
  format=$venv/bin/clang-format
fi

cd "$root"
mapfile -d '' files < <(find app core parallel models scripts test \
  \( -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) -print0)
((${#files[@]})) || die "no source files found in $root"
if ! $check; then
  "$format" -i "${files[@]}"
  exit
fi
# One process for many files: starting it takes longer than checking one file.
if ! said=$(printf '%s\0' "${files[@]}" | xargs -0 -n 64 -P "$(nproc)" "$format" --dry-run --Werror 2>&1); then
  mapfile -t unformatted < <(sed -n 's/^\(.*\):[0-9]*:[0-9]*: error: code should be clang-formatted .*/\1/p' <<<"$said" | sort -u)
  ((${#unformatted[@]})) || die "clang-format failed: $said"
  printf 'not formatted: %s\n' "${unformatted[@]}"
  die "${#unformatted[@]} of ${#files[@]} files are not formatted; scripts/format.sh formats them"
fi
say "all ${#files[@]} files are formatted"
