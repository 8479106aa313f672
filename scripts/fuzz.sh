#!/usr/bin/env bash
# Fuzzes the readers of files and bytes from outside, with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer,
# after all the set-up that is missing (also clang).
#   scripts/fuzz.sh [TARGET] [SECONDS]
# Each target (or only TARGET, a folder of test/fuzz/corpus) runs for 60 s (or SECONDS) and prints one line. Exits with
# 1 if one crashed, hung or leaked: the input is then in build-fuzz/found, and
#   build-fuzz/fuzz_TARGET INPUT
# shows what happens. Useful inputs that the search finds stay in build-fuzz/corpus; the next search goes on from them.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

mapfile -t targets < <(cd "$root/test/fuzz/corpus" && printf '%s\n' */ | tr -d /)
seconds=60
while (($#)); do
  case $1 in
    -h | --help) sed -n '2,9s/^# *//p' "$0" && exit ;;
    *[!0-9]*)
      [[ -d $root/test/fuzz/corpus/$1 ]] || exit_code=2 die "no target $1; the targets are: ${targets[*]}"
      targets=("$1")
      ;;
    *) seconds=$1 ;;
  esac
  shift
done

# True if clang has the fuzzer's and the sanitizers' libraries.
can_fuzz() {
  has_command clang++ && clang++ -x c++ -fsanitize=fuzzer,address,undefined -o /dev/null - 2>/dev/null <<<'
    extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'
}
ensure_clang() {
  can_fuzz && return
  has_command clang++ || install_packages clang
  can_fuzz || install_packages "libclang-rt-$(clang++ -dumpversion | cut -d. -f1)-dev"
  can_fuzz || die "$(command -v clang++) cannot build with -fsanitize=fuzzer,address,undefined"
}

lock_checkout
ensure_packages
ensure_clang
ensure_toolchain
build fuzz "${targets[@]/#/fuzz_}"
unlock_checkout

dir=$(build_dir fuzz)
symbolizer=$(dirname "$(readlink -f "$(command -v clang++)")")/llvm-symbolizer
[[ ! -x $symbolizer ]] || export ASAN_SYMBOLIZER_PATH=$symbolizer UBSAN_SYMBOLIZER_PATH=$symbolizer
export LSAN_OPTIONS=suppressions=$scripts/lsan.supp:print_suppressions=0 UBSAN_OPTIONS=print_stacktrace=1
mkdir -p "$dir/found"
failed=0
for target in "${targets[@]}"; do
  log=$dir/found/$target.log
  mkdir -p "$dir/corpus/$target"
  if "$dir/fuzz_$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix="$dir/found/$target-" "$dir/corpus/$target" "$root/test/fuzz/corpus/$target" >"$log" 2>&1; then
    printf '%-12s %9d inputs in %d s, %s edges covered: nothing found\n' "$target" \
      "$(awk '/number_of_executed_units/ { print $2 }' "$log")" "$seconds" \
      "$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)"
  else
    failed=1
    grep -m 1 -E 'ERROR|runtime error|what\(\)' "$log" || tail -n 5 "$log"
    printf '%-12s FAILED: %s (whole report: %s)\n' "$target" "$(sed -n 's/.*Test unit written to //p' "$log")" "$log"
  fi
done
exit "$failed"
