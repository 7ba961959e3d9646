# Runs test programs and sums their results up; to be sourced after common.sh.

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# `run NAME COMMAND...`, where the command writes $results/NAME.xml. One that crashes leaves none, which counts as a failure: so each is
# expected by name.
run() {
  local name=$1
  shift
  touch "$results/$name.expected"
  "$@" || true
}

# What it says is shown only if it fails.
run_program() {
  run "$1" quietly "$2" --gtest_brief=1 --gtest_output="xml:$results/$1.xml"
}

# The GoogleTest programs below a folder of a build. One that is built no more stays in the folder, and does not count.
programs_below() {
  local build=${1%%/*} program
  while IFS= read -r program; do
    if grep -q "^build ${program#"$build"/}:" "$build/build.ninja"; then echo "$program"; fi
  done < <(find "$1" -type f -name '*_test' -perm -u+x | sort)
}

# Those whose path contains a pattern.
run_programs() {
  local program programs start=$SECONDS
  mapfile -t programs < <(programs_below "$1" | grep -F -- "$2" || true)
  ((${#programs[@]} > 0)) || return 0
  for program in "${programs[@]}"; do run_program "$(basename "$program")" "$program"; done
  say "ran ${#programs[@]} GoogleTest programs in $((SECONDS - start)) s"
}

# Prints "N passed, N failed"; fails unless all passed.
count_results() { "$python" scripts/lib/count_results.py "$results"; }
