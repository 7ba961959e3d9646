# What koila needs of the system; to be sourced after common.sh.

# A Debian package, and a command or header by which to know that it is there. Debian's own meson is too old: it comes from pip.
needed_packages=(
  'g++ command:g++'
  'ninja-build command:ninja'
  'pkg-config command:pkg-config'
  'libfmt-dev header:fmt/format.h'
  'nlohmann-json3-dev header:nlohmann/json.hpp'
  'libcli11-dev header:CLI/App.hpp'
  'libgtest-dev header:gtest/gtest.h'
  'cmake command:cmake'
)

is_there() {
  case $1 in
    command:*) command -v "${1#command:}" >/dev/null ;;
    header:*) [[ -e /usr/include/${1#header:} || -e /usr/local/include/${1#header:} ]] ;;
  esac
}

# Names of the packages that are missing, one a line.
missing_packages() {
  local entry
  for entry in "${needed_packages[@]}"; do
    is_there "${entry#* }" || echo "${entry%% *}"
  done
  # Debian keeps what venv needs out of python3. A venv that is there already shows that nothing is missing.
  if [[ ! -x $python && -z ${KOILA_PYTHON:-} ]]; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
  fi
}

install_packages() {
  local missing
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]} > 0)) || return 0
  if ! command -v apt-get >/dev/null; then
    fail "missing on this system (Debian's names): ${missing[*]}"
  fi
  if ((EUID != 0)) || [[ -n ${no_system:-} ]]; then
    fail "first install what is missing: sudo apt-get install -y ${missing[*]}"
  fi
  is_there command:ccache || missing+=(ccache)
  say "installing into this system with apt-get: ${missing[*]} (scripts/setup --no-system only names them)"
  quietly apt-get update
  DEBIAN_FRONTEND=noninteractive quietly apt-get install -y --no-install-recommends "${missing[@]}"
}

# What only the tests need: they open the HTML report in a browser that has no screen. Where it cannot be had they are skipped, with the reason
# that is left in .cache/chromium/why_not; where that was tried in vain within the last hour, it is not tried again.
install_chromium() {
  local here=.cache/chromium name
  for name in chromium-headless-shell chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then return 0; fi
  done
  [[ -n $(find "$here/why_not" -mmin -60 2>/dev/null) ]] && return 1
  mkdir -p "$here"
  if ! command -v apt-get >/dev/null || ((EUID != 0)) || [[ -n ${no_system:-} ]]; then
    echo 'install it: sudo apt-get install chromium-headless-shell' >"$here/why_not"
    return 1
  fi
  say 'installing into this system with apt-get: chromium-headless-shell, for the tests of the HTML report (scripts/setup --no-system does without)'
  if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium-headless-shell; } >"$here/log" 2>&1; then
    { tail -n 1 "$here/log" | grep . || echo 'apt-get failed'; } >"$here/why_not"
    return 1
  fi
  rm -f "$here/why_not" "$here/log"
}
