#!/usr/bin/env bash
# bad_decks.sh FOURFOLD DECKS LAUNCHER
#
# For every DECKS/NAME.yaml: stderr is DECKS/NAME.expected to the byte, stdout is empty, the exit code is 2; by
# `check --ranks 4` alone, and by four copies under the launcher for each command of `launched` (every fifth deck, from
# FOURFOLD_SEED on, and those with more faults; all with FOURFOLD_FULL=1). After a change of a message,
# FOURFOLD_WRITE_EXPECTED=1 writes the .expected files anew: read the difference before committing it.
set -u
fourfold=$1 decks=$2 launcher=$3
launched=(check train) # commands that must behave so under the launcher

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
launch=("$launcher" -n 4)
if "$launcher" --version 2>&1 | grep -q "Open MPI\|OpenRTE"; then
  launch=("$launcher" -q --oversubscribe --bind-to none -n 4)
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$decks" || exit 1
failures=0 count=0 one=0 launches=0
first=$((${FOURFOLD_SEED:-0} % 5))

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# expect_refusal NAME COMMAND...: runs the command and compares all three.
expect_refusal() {
  local name=$1
  shift
  "$@" >"$work/out" 2>"$work/err" </dev/null
  local code=$?
  [ $code = 2 ] || fail "$name: exit code $code: $*"
  [ ! -s "$work/out" ] || fail "$name: something on stdout: $(head -3 "$work/out"): $*"
  diff -u "$name.expected" "$work/err" || fail "$name: stderr: $*"
}

for deck in *.yaml; do
  name=${deck%.yaml}
  count=$((count + 1)) under_launcher=1
  if [ "${FOURFOLD_WRITE_EXPECTED:-0}" = 1 ]; then
    "$fourfold" check "$deck" --ranks 4 2>"$name.expected" >/dev/null
  fi
  expect_refusal "$name" "$fourfold" check "$deck" --ranks 4
  if [ "${FOURFOLD_FULL:-0}" != 1 ] && [ $((count % 5)) != $first ]; then
    case $name in five_* | six_*) ;; *) under_launcher=0 ;; esac
  fi
  for command in "${launched[@]}"; do
    [ $under_launcher = 1 ] || continue
    launches=$((launches + 1))
    ranks=()
    [ "$command" = check ] && ranks=(--ranks 4) # the others count their ranks
    expect_refusal "$name" "${launch[@]}" "$fourfold" "$command" "$deck" "${ranks[@]+"${ranks[@]}"}"
  done
  # One fault, one message; those with more say how many in their name.
  case $name in
    five_*) messages=5 ;;
    six_*) messages=6 ;;
    *) messages=1 one=$((one + 1)) ;;
  esac
  [ "$(wc -l <"$name.expected")" = $messages ] || fail "$name: not $messages messages"
done

[ $one -ge 25 ] || fail "only $one decks with one fault"
[ -e five_faults.yaml ] || fail "no deck with five faults"
for file in *.expected; do [ -e "${file%.expected}.yaml" ] || fail "$file without a deck"; done
echo "$count bad decks, $launches launches of four copies (${launched[*]}, seed $first); $failures failures"
[ $failures = 0 ]
