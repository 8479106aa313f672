# Set-up shared by the scripts of this folder; sourced, never run. Each function first checks in milliseconds whether its
# work is done, and prints what it installs.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
scripts=$root/scripts
readonly root venv scripts

say() { printf 'pptrain: %s\n' "$*" >&2; }
die() {
  say "error: $*"
  exit "${exit_code:-1}"
}

# One set-up at a time in a checkout: a second script waits for the first. Descriptor 9 holds the lock, so callers close
# it (unlock_checkout) before they start something long.
lock_checkout() {
  exec 9<"$root"
  command -v flock >/dev/null || return 0
  flock -n 9 || { say "waiting for another script in this checkout to finish its set-up" && flock 9; }
}
unlock_checkout() { exec 9<&-; }

# Open MPI refuses root by default; a container often has no other user.
allow_mpirun_as_root() {
  [[ $EUID -ne 0 ]] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
}

# --- Debian and Ubuntu packages -----------------------------------------------------------------------------------

has_header() {  # has_header NAME...: true if the compiler finds one of these
  local name dir
  local -a dirs=(/usr/include /usr/local/include)
  IFS=: read -ra extra <<<"${CPATH:-}:${CPLUS_INCLUDE_PATH:-}"
  IFS=';:' read -ra prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  dirs+=("${extra[@]}" "${prefixes[@]/%//include}")
  for name; do
    for dir in "${dirs[@]}"; do
      [[ -n $dir && -e $dir/$name ]] && return 0
    done
  done
  return 1
}
has_command() { command -v "$1" >/dev/null 2>&1; }

# Prints the packages that the build still needs. It checks what they provide, not their names in a package database, so
# that another MPI, compiler or hand-installed header counts too.
missing_packages() {
  has_command "${CXX:-g++}" || echo g++
  has_command ccache || echo ccache
  has_header toml++/toml.h toml++/toml.hpp || echo libtomlplusplus-dev
  has_header CLI/CLI.hpp || echo libcli11-dev
  has_header spdlog/spdlog.h || echo libspdlog-dev
  has_header catch2/catch.hpp catch2/catch_all.hpp || echo catch2
  has_header nlohmann/json.hpp || echo nlohmann-json3-dev
  has_header xxhash.h || echo libxxhash-dev
  has_header openssl/hmac.h || echo libssl-dev
  has_header pcre2.h || echo libpcre2-dev
  has_header utf8proc.h || echo libutf8proc-dev
  has_header zlib.h || echo zlib1g-dev
  has_header zstd.h || echo libzstd-dev
  has_command mpicc || echo libopenmpi-dev
  has_command mpirun || has_command srun || echo openmpi-bin
  if [[ -z ${PPTRAIN_TORCH_DIR:-} ]] && ! venv_is_whole; then
    [[ -n $(find_python) ]] || echo python3-venv
    [[ -e /etc/ssl/certs/ca-certificates.crt || -e /etc/pki/tls/certs/ca-bundle.crt ]] || echo ca-certificates
  fi
}

ensure_packages() {
  local -a missing
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]} == 0)) || install_packages "${missing[@]}"
}

refuse_offline() {  # refuse_offline WHAT: ends the script if downloads are not allowed
  [[ -z ${PPTRAIN_OFFLINE:-} ]] || die "PPTRAIN_OFFLINE is set, so nothing is downloaded; missing: $1"
}

install_packages() {  # install_packages NAME...
  local -a missing=("$@") as_root=()
  [[ -z ${PPTRAIN_OFFLINE:-} || ${missing[*]} != ccache ]] || return 0  # only makes rebuilding faster
  refuse_offline "${missing[*]}"
  if [[ $EUID -ne 0 ]]; then
    if has_command sudo && sudo -n true 2>/dev/null; then
      as_root=(sudo -n)
    elif [[ ${missing[*]} == ccache ]]; then
      return 0
    else
      die "these packages are missing: ${missing[*]}
  Installing them needs root, once. Ask an administrator for (Debian, Ubuntu):
    apt-get install ${missing[*]}
  or make what they provide reachable (PATH, CPATH, CMAKE_PREFIX_PATH). Then run this again; it needs no root."
    fi
  fi
  has_command apt-get || die "not a Debian or Ubuntu system: install the equivalents of these packages, then run this again: ${missing[*]}"
  say "installing packages with apt-get: ${missing[*]}"
  local log
  log=$(mktemp)
  if ! { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq update &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "${missing[@]}"; } \
    >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    die "apt-get could not install these packages; the whole output is in $log"
  fi
  rm -f "$log"
  hash -r
}

# --- The virtual environment --------------------------------------------------------------------------------------

find_python() {  # prints the first Python >= 3.10 that can make a virtual environment with pip
  local python
  local -a candidates=(python3 /usr/bin/python3 python3.{14,13,12,11,10})
  [[ -z ${PPTRAIN_PYTHON:-} ]] || candidates=("$PPTRAIN_PYTHON")
  for python in "${candidates[@]}"; do
    if "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
      echo "$python"
      return
    fi
  done
}

# During an installation .venv holds the file `installing`. The environment is built anew after an interruption, after a
# move (its programs name their place), or if its Python is gone.
venv_is_whole() {
  [[ -x $venv/bin/python && -e $venv/pyvenv.cfg && ! -e $venv/installing ]] || return 1
  [[ ! -e $venv/installed/place || $(<"$venv/installed/place") == "$venv" ]]
}

# ensure_requirements SET [pip option]...: installs scripts/SET.txt into .venv unless exactly that is installed (the copy
# in .venv/installed is the stamp).
ensure_requirements() {
  local set=$1 && shift
  local stamp=$venv/installed/$set.txt
  venv_is_whole && cmp -s "$scripts/$set.txt" "$stamp" && return 0
  refuse_offline ".venv with scripts/$set.txt (or set PPTRAIN_TORCH_DIR)"
  if ! venv_is_whole; then
    [[ ! -d $venv ]] || say ".venv is incomplete, was moved, or has lost its Python: building it anew"
    rm -f "$venv/pyvenv.cfg" && rm -rf "$venv"  # in this order, so that a half-removed environment is never taken for a whole one
    local python
    python=$(find_python)
    [[ -n $python ]] || die "no Python >= 3.10 with venv and pip was found; on Debian and Ubuntu install python3-venv, or set PPTRAIN_PYTHON"
    say "making a virtual environment in .venv with $("$python" --version)"
    mkdir -p "$venv" && touch "$venv/installing"
    "$python" -m venv "$venv"
  fi
  say "installing into .venv with pip: $(grep -v '^#' "$scripts/$set.txt" | sed 's/;.*//' | xargs)"
  touch "$venv/installing"
  local -a quiet=(-q)
  [[ ! -t 2 ]] || quiet=()
  "$venv/bin/python" -m pip --disable-pip-version-check install "${quiet[@]}" "$@" -r "$scripts/$set.txt" >&2 ||
    die "pip could not install scripts/$set.txt into .venv; run this again once the reason above is gone"
  mkdir -p "$venv/installed"
  cp "$scripts/$set.txt" "$stamp"
  echo "$venv" >"$venv/installed/place"
  rm "$venv/installing"
}

# To use another LibTorch, CMake and Ninja, set PPTRAIN_TORCH_DIR (a folder with include/ and lib/) and put the tools on
# PATH.
ensure_toolchain() {
  [[ -n ${PPTRAIN_TORCH_DIR:-} ]] && return 0
  if has_command nvcc; then
    ensure_requirements requirements --no-deps
    ensure_requirements requirements-cuda
    ensure_requirements requirements-cudnn --no-deps
  else
    ensure_requirements requirements --no-deps
  fi
  export PATH=$venv/bin:$PATH
}

torch_dir() {
  if [[ -n ${PPTRAIN_TORCH_DIR:-} ]]; then
    echo "$PPTRAIN_TORCH_DIR"
  else
    printf '%s\n' "$venv"/lib/python3*/site-packages/torch
  fi
}

# --- The build ----------------------------------------------------------------------------------------------------

check_preset() {  # check_preset NAME: ends the script if there is no such preset
  case $1 in
    release | debug | asan | tsan) ;;
    *) exit_code=2 die "--preset ${1:-(nothing)}: the presets are release, debug, asan and tsan" ;;
  esac
}

build_dir() {  # build_dir PRESET
  [[ $1 == release ]] && echo "$root/build" || echo "$root/build-$1"
}

available_mib() {  # MiB of free memory on the host, or a container's limit if that is less
  local left limit
  left=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || true)
  [[ ! $limit =~ ^[0-9]+$ ]] || ((left = left < limit / 1048576 ? left : limit / 1048576))
  echo "$left"
}
jobs() {  # compilers at once: one per core, with 2 GiB for each; the largest unit needs 1.8 GB
  local cores fit
  cores=$(nproc)
  fit=$(($(available_mib) / 2048))
  echo $((fit < 1 ? 1 : cores < fit ? cores : fit))
}

# ctest's -j: a test takes two (PROCESSORS), so three run at once on two cores, since most wait now and then.
test_slots() {
  local slots=$((3 * $(nproc)))
  echo $((slots < 4 ? 4 : slots > 24 ? 24 : slots))
}

# build PRESET TARGET... : builds; configures first if something has changed that CMake cannot notice by itself.
build() {
  local preset=$1 && shift
  local dir options stamp
  dir=$(build_dir "$preset")
  stamp=$dir/configured
  local -a arguments=("-DPPTRAIN_TORCH_DIR=$(torch_dir)" "-DPPTRAIN_WERROR=${PPTRAIN_WERROR:-OFF}")
  [[ -z ${PPTRAIN_TEST_PATIENCE:-} ]] || arguments+=("-DPPTRAIN_TEST_PATIENCE=$PPTRAIN_TEST_PATIENCE")
  if has_command ccache; then
    export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1  # another checkout of the same sources finds the same objects
    export CCACHE_SLOPPINESS=pch_defines,time_macros  # without it ccache keeps nothing that uses precompiled headers
    arguments+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
  fi
  options="source=$root ${arguments[*]} CXX=${CXX:-} CUDAARCHS=${CUDAARCHS:-} nvcc=$(command -v nvcc || true) mpicc=$(readlink -f "$(command -v mpicc)" || true)"
  if [[ ! -e $dir/build.ninja || ! -e $stamp || $(<"$stamp") != "$options" ]]; then
    say "configuring ${dir#"$root"/} (preset $preset)"
    if [[ -e $dir/CMakeCache.txt ]] && ! grep -qx "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$dir/CMakeCache.txt"; then
      rm -rf "$dir"  # the checkout was moved or copied: Ninja's records name the old place
    fi
    mkdir -p "$dir"
    if ! (cd "$root" && cmake --fresh --preset "$preset" "${arguments[@]}") >"$dir/configure.log" 2>&1; then
      cat "$dir/configure.log" >&2
      die "CMake could not configure the build, see above"
    fi
    printf '%s\n' "$options" >"$stamp"
  fi
  ninja -C "$dir" -j "$(jobs)" "$@" >&2 || die "the build failed, see above"
}

# build_tests PRESET [TARGET]: builds everything, or what TARGET needs, after all the set-up that is missing.
build_tests() {
  lock_checkout
  ensure_packages
  ensure_toolchain
  [[ -n ${PPTRAIN_TORCH_DIR:-} ]] || ensure_requirements requirements-test
  set_up=$SECONDS  # for callers that print how long it took
  build "$1" "${2:-all}"
  unlock_checkout
}

# --- Packages -----------------------------------------------------------------------------------------------------

project_version() { sed -n 's/^project(pptrain VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt"; }

# begin_package [--out DIR]: reads the arguments of the calling script, and builds the preset `package`. Sets `out`, and
# `stage`, an empty folder that is removed when the script ends.
begin_package() {
  out=$root/dist
  while (($#)); do
    case $1 in
      --out) (($# > 1)) || exit_code=2 die "--out needs a folder" && out=$(realpath -m -- "$2") && shift 2 ;;
      -h | --help) sed -n '2,/^set -/s/^# *//p' "$0" && exit ;;
      *) exit_code=2 die "unknown argument $1; see scripts/$(basename "$0") --help" ;;
    esac
  done
  lock_checkout
  ensure_packages
  ensure_toolchain
  build package pptrain
  unlock_checkout
  stage=$(mktemp -d)
  trap 'rm -rf "$stage"' EXIT
}

install_package() {  # install_package PREFIX COMPONENT...: of the build `package`
  local prefix=$1 component && shift
  for component; do
    cmake --install "$(build_dir package)" --prefix "$prefix" --strip --component "$component" >/dev/null
  done
}
