# The Python environment .venv; to be sourced after common.sh.
#
# With KOILA_PYTHON it is made by that Python and sees that Python's torch, until .venv is removed; else torch comes from pip (its CPU
# build is enough, and on a machine with a GPU the system's python3 is taken when it has a torch).

torch_requirement='torch==2.13.0'
meson_requirements=('meson==1.12.1; python_version >= "3.11"' 'meson>=1.3; python_version < "3.11"')
# Of these only what they bring of their own: each release of torchvision asks for one of torch, in another build than the one that is there.
without_dependencies='timm==1.0.31 torchvision'

has_torch() { "$1" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' 2>/dev/null; }

# The Python whose torch koila is built for; empty: pip's torch in .venv.
users_python() {
  local chosen=${KOILA_PYTHON:-}
  if [[ -n $chosen ]]; then
    chosen=$(command -v "$chosen") || fail "KOILA_PYTHON=$KOILA_PYTHON is no command"
    chosen=$(realpath -s "$chosen")
    if [[ $chosen == "$python" ]]; then chosen=; fi
  fi
  if [[ -n $chosen ]]; then
    has_torch "$chosen" || fail "KOILA_PYTHON=$KOILA_PYTHON has no torch"
    echo "$chosen"
  elif [[ -e .venv/.koila-python ]]; then
    cat .venv/.koila-python
  elif [[ ! -e .venv && -e /dev/nvidia0 ]] && has_torch python3; then
    command -v python3
  fi
}

# torchvision 0.28 goes with torch 2.13, 0.26 with 2.11; one that is there already stays.
install_without_dependencies() {
  local names
  names=$("$python" - $without_dependencies <<'PYTHON'
import importlib.metadata, importlib.util, sys
minor = int(importlib.metadata.version("torch").split(".")[1])
names = [name for name in sys.argv[1:] if importlib.util.find_spec(name.split("=")[0]) is None]
print(*[f"torchvision==0.{minor + 15}.*" if name == "torchvision" else name for name in names])
PYTHON
  ) || return
  # shellcheck disable=SC2086
  [[ -z $names ]] || quietly "$python" -m pip install --no-deps $names
}

setup_python() {
  local user stamp pinned=()
  user=$(users_python)
  stamp="$user $torch_requirement $without_dependencies ${meson_requirements[*]} $(cat tests/requirements.txt tests/constraints.txt)"
  if [[ -e .venv/.koila-stamp && $(cat .venv/.koila-stamp) == "$stamp" ]]; then return; fi

  if [[ -n $user ]]; then
    say "setting up $root/.venv with the torch of $user, and with pip: meson, and what tests/requirements.txt names"
    quietly "$user" -m venv --clear .venv
    # A path file and not --system-site-packages: of a Python that is a venv itself, that would show the packages below it.
    "$user" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))' \
      >"$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/koila_torch.pth"
    echo "$user" >.venv/.koila-python
  else
    say "setting up $root/.venv with pip: $torch_requirement, numpy, meson, and what tests/requirements.txt names (a few minutes at first, nothing outside of it)"
    [[ -x $python ]] || quietly python3 -m venv .venv
    if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then pinned=(-c tests/constraints.txt); fi
    quietly "$python" -m pip install "${pinned[@]}" "$torch_requirement" numpy
  fi
  quietly "$python" -m pip install "${pinned[@]}" "${meson_requirements[@]}" -r tests/requirements.txt
  install_without_dependencies || say "no torchvision or timm for this torch: tests of models that need them are skipped"
  printf '%s' "$stamp" >.venv/.koila-stamp
}
