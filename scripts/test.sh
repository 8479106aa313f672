#!/usr/bin/env bash
# Builds and runs the tests, after all the set-up that is missing. The last line is "N passed, N failed".
#   scripts/test.sh [--full | --all | --gpu] [--preset release|debug|asan|tsan] [ctest option]...
# Without an option the quick tier: every part of the program, without long tests. --full: every test. --all: also all
# combinations of options (PPTRAIN_TESTS_ALL=1); otherwise every two options meet once. --gpu: only the tests that need a
# GPU. Further arguments go to ctest, for example -R schedule (names that match) or -V (all output). A test that depends
# on a clock (ctest's label `clock`) may starve on a busy machine: if it fails, it runs once more, with the same seed and
# no other test, and is counted apart. No other test runs again, and none does under a sanitizer.
# PPTRAIN_TEST_PATIENCE=3 multiplies all time limits. Files of tests are in TMPDIR; without it in /dev/shm, if that has 4 GiB
# and the machine 8, else in /tmp.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

preset=release
tier=quick
options=()
while (($#)); do
  case $1 in
    --gpu | --full) tier=${1#--} && shift ;;
    --all) tier=full && export PPTRAIN_TESTS_ALL=1 PPTRAIN_TEST_PATIENCE="${PPTRAIN_TEST_PATIENCE:-20}" && shift ;;
    --preset) preset=${2:-} && shift $(($# > 1 ? 2 : 1)) ;;
    --preset=*) preset=${1#*=} && shift ;;
    -h | --help) sed -n '2,10s/^# *//p' "$0" && exit ;;
    *) options+=("$1") && shift ;;
  esac
done
check_preset "$preset"

case $tier in  # a test's tier is its label of ctest
  quick) labels=(-LE '^(full|gpu)$') && target=quick_tests ;;
  full) labels=(-LE '^gpu$') && target=all ;;
  gpu) labels=(-L '^gpu$') && target=all ;;
esac
build_tests "$preset" "$target"
built=$SECONDS
allow_mpirun_as_root
# A test may have more ranks than cores, and no rank is bound to a core that another one uses.
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
# A random seed, but a second run uses the same one.
export PPTRAIN_LIVENESS_SEED=${PPTRAIN_LIVENESS_SEED:-$RANDOM}

# A new folder in memory, if that has room and programs may run there.
memory_folder() {
  local free folder
  free=$(df --output=avail -BM /dev/shm 2>/dev/null | tail -n 1 | tr -dc 0-9) || return
  (($(available_mib) > 8192 && ${free:-0} > 4096)) || return
  folder=$(mktemp -d /dev/shm/pptrain_tests_XXXXXX) || return
  if cp "$(type -P true)" "$folder" && "$folder/true"; then echo "$folder"; else rm -rf "$folder" && return 1; fi
}
# Tests write, sync and remove many small files, which a disk makes them wait for.
if [[ -z ${TMPDIR:-} ]] && in_memory=$(memory_folder); then
  export TMPDIR=$in_memory
  trap 'rm -rf "$TMPDIR"' EXIT
fi

dir=$(build_dir "$preset")
runner=()
if [[ $preset == tsan ]] && setarch "$(uname -m)" -R true 2>/dev/null; then
  runner=(setarch "$(uname -m)" -R)  # GCC 12's ThreadSanitizer can't place its shadow under a highly randomised layout
fi
report=$dir/test-report.xml
report_again=$dir/test-report-again.xml
rm -f "$report" "$report_again"
status=0
cd "$root"
minutes() { printf '%d:%02d min' $(($1 / 60)) $(($1 % 60)); }
names() { ctest --preset "$preset" -N "$@" | sed -n 's/^ *Test *#[0-9]*: //p'; }  # names [ctest option]...
tests() {  # tests REPORT [ctest option]...
  local to=$1 && shift
  "${runner[@]}" ctest --preset "$preset" "${labels[@]}" --output-on-failure --no-tests=error \
    --output-junit "$to" --test-output-size-passed 1000000 --test-output-size-failed 1000000 "$@"
}
tests "$report" -j "$(test_slots)" "${options[@]}" || status=$?
reports=("$report")
if ((status == 8)) && [[ $preset == release ]]; then  # 8: ctest's code for tests that failed
  # --rerun-failed would ignore labels.
  mapfile -t clock < <(names -L '^clock$')
  again=$(python3 "$scripts/test_summary.py" --again "$report" "${clock[@]}")
  if [[ -n $again ]]; then
    say "tests that depend on a clock failed, and run again one at a time"
    tests "$report_again" -j 1 -R "$again" || true
    reports+=("$report_again")
  fi
  status=0  # the summary reports failures
fi
left_out=()
[[ $tier != quick ]] || mapfile -t left_out < <(names -L '^full$' "${options[@]}")
say "the set-up took $(minutes "$set_up"), the build $(minutes $((built - set_up))), the tests $(minutes $((SECONDS - built)))"
python3 "$scripts/test_summary.py" "${reports[@]}" --left-out "${left_out[@]}" || ((status)) || status=1
exit "$status"
