# Shared by koila's scripts; to be sourced. Goes to the repository's root.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$PWD
python=$root/.venv/bin/python

# ccache: the same file compiled the same way in another checkout is a hit.
export CCACHE_NOHASHDIR=1
# Without it ccache passes by every file that is compiled with a precompiled header, and those are the ones that take long.
export CCACHE_SLOPPINESS=pch_defines,time_macros

say() { printf 'koila: %s\n' "$*" >&2; }

fail() {
  say "$*"
  exit 1
}

# As many compilers as there are cores, and no more than memory holds: a file that includes torch takes some 1.5 GiB.
jobs() {
  local cores available fit
  cores=$(nproc)
  available=$(awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo)
  fit=$((available / 1536))
  if ((fit < 1)); then fit=1; fi
  echo $((fit < cores ? fit : cores))
}

# Not .venv/bin/meson: where the user's Python has Meson, .venv sees it and has no script of its own.
meson() { "$python" -m mesonbuild.mesonmain "$@"; }

# Runs a step whose output matters only when it fails.
quietly() {
  local log status=0
  log=$(mktemp)
  "$@" >"$log" 2>&1 || status=$?
  if ((status != 0)); then cat "$log" >&2; fi
  rm -f "$log"
  return "$status"
}
