#!/usr/bin/env bash
# Makes the documentation as a site: build/site/html/index.html, for a browser to open from the folder or a server to serve.
#   scripts/site.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

case ${1:-} in
  "") ;;
  -h | --help) sed -n '2,3s/^# *//p' "$0" && exit ;;
  *) exit_code=2 die "unknown argument $1; see scripts/site.sh --help" ;;
esac
lock_checkout
ensure_packages
ensure_toolchain
ensure_requirements requirements-site
build release pptrain
unlock_checkout
"$venv/bin/python" "$scripts/site/make_pages.py" "$root/build/pptrain" "$root/build/site"
NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build --quiet --strict --config-file "$root/build/site/mkdocs.yml"
echo "$root/build/site/html/index.html"
