#!/usr/bin/env bash
# Puts NVIDIA's perf_analyzer into DIR and prints the path of the command that runs it, once it does run.
# Its wheel wants glibc 2.38. Where the system's is older, Debian 13's libraries are unpacked beside it: nothing is
# installed, and only this command uses them. Needs x86-64 and, for the libraries, apt-get and dpkg.
# Usage: scripts/perf_analyzer.sh DIR    PYTHON (default python3) names an interpreter with pip.
set -euo pipefail

VERSION=2.60.0
LIBRARIES=(libc6 libstdc++6 libgcc-s1 libssl3t64 zlib1g libzstd1)

fail() { printf 'perf_analyzer: %s\n' "$*" >&2; exit 1; }
say() { printf 'perf_analyzer: %s\n' "$*" >&2; }

dir=$(realpath -m "${1:?usage: scripts/perf_analyzer.sh DIR}")
command=$dir/$VERSION/perf_analyzer
[ -x "$command" ] && { echo "$command"; exit 0; }
[ "$(uname -m)" = x86_64 ] || fail "there is a build for x86-64 only, this machine is $(uname -m)"
python=${PYTHON:-python3}

# Everything is made in a folder of its own that gets its name at the end, so a half-done one is never used.
mkdir -p "$dir"
work=$(mktemp -d "$dir/unfinished.XXXXXX")
trap 'rm -rf "$work"' EXIT

unpack_wheel() {
  say "downloading perf-analyzer $VERSION"
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --platform manylinux_2_38_x86_64 --dest "$work" "perf-analyzer==$VERSION" >&2 || fail "pip cannot download it"
  "$python" -m zipfile -e "$work"/perf_analyzer-*.whl "$work/wheel"
  rm "$work"/perf_analyzer-*.whl
  chmod +x "$work/wheel/perf_analyzer/bin/perf_analyzer"
}

# The mirror that this machine's apt uses, asked of apt itself.
debian_mirror() {
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' |
    awk '/\/debian\/?$/ && !found { print; found = 1 } END { exit !found }'
}

unpack_libraries() {
  command -v apt-get dpkg >/dev/null || fail "glibc is older than 2.38 and there is no apt-get to get a newer one with"
  local mirror keys=/usr/share/keyrings/debian-archive-keyring.gpg apt
  mirror=$(debian_mirror) || fail "apt's sources name no Debian mirror"
  [ -f "$keys" ] || fail "$keys is missing: apt-get install debian-archive-keyring"
  say "unpacking Debian 13's libraries beside it"
  mkdir -p "$work"/apt/{lists/partial,cache/archives/partial} "$work/libraries"
  echo "deb [signed-by=$keys] $mirror trixie main" > "$work/apt/trixie.list"
  apt=(apt-get -qq -o "Dir::Etc::SourceList=$work/apt/trixie.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$work/apt/lists" -o "Dir::Cache=$work/apt/cache" -o APT::Sandbox::User=root)
  (cd "$work/apt" && "${apt[@]}" update && "${apt[@]}" download "${LIBRARIES[@]}") >&2 || fail "apt-get failed"
  local deb
  for deb in "$work"/apt/*.deb; do dpkg -x "$deb" "$work/libraries"; done
  rm -r "$work/apt"
}

# $1: the folder in which everything will lie when the command runs
write_command() {
  local program=$1/wheel/perf_analyzer/bin/perf_analyzer libraries=$1/libraries/usr/lib/x86_64-linux-gnu
  if [ -d "$work/libraries" ]; then
    printf '#!/bin/sh\nexec %q --library-path %q %q "$@"\n' "$libraries/ld-linux-x86-64.so.2" "$libraries" "$program"
  else
    printf '#!/bin/sh\nexec %q "$@"\n' "$program"
  fi > "$work/perf_analyzer"
  chmod +x "$work/perf_analyzer"
}

unpack_wheel
"$work/wheel/perf_analyzer/bin/perf_analyzer" --version >/dev/null 2>&1 || unpack_libraries
write_command "$dir/$VERSION"
rm -rf "${dir:?}/$VERSION"
chmod 755 "$work"
mv "$work" "$dir/$VERSION"
"$command" --version >/dev/null 2>&1 || { rm -r "${dir:?}/$VERSION"; fail "it does not run on this machine"; }
echo "$command"
