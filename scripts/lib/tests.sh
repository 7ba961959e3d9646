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

# The GoogleTest programs below a folder whose path contains a pattern.
run_programs() {
  local program name
  while IFS= read -r program; do
    name=$(basename "$program")
    echo "== $name"
    run "$name" "$program" --gtest_brief=1 --gtest_output="xml:$results/$name.xml"
  done < <(find "$1" -type f -name '*_test' -perm -u+x | sort | grep -F -- "$2" || true)
}

# Prints "N passed, N failed"; fails unless all passed.
count_results() { "$python" scripts/lib/count_results.py "$results"; }
