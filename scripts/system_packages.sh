#!/usr/bin/env bash
# Programs that tests start and pip cannot bring. Where one is missing, root on a Debian gets its package, unless
# SYSTEM_PACKAGES=no; everyone else is told what to install. Without it the tests that need it skip and say so.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive

# Debian keeps PostgreSQL's server programs off the PATH.
debian=$(printf '%s:' /usr/lib/postgresql/*/bin)

# program, package, what for
need() {
  PATH=$PATH:$debian command -v "$1" >/dev/null && return
  if [ "$(id -u)" = 0 ] && [ "${SYSTEM_PACKAGES:-yes}" != no ] && command -v apt-get >/dev/null; then
    echo "installing the package $2: $3 (SYSTEM_PACKAGES=no leaves it out)"
    { apt-get -qq update && apt-get -qq -o Dpkg::Use-Pty=0 install --no-install-recommends "$2"; } >&2 ||
      echo "apt-get failed; going on without $2"
  else
    echo "$1 is missing: $3; on Debian: apt-get install $2"
  fi
}

need initdb postgresql "the registry is tested on PostgreSQL too"
