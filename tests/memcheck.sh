#!/usr/bin/env bash
# The checkpoint tests under Valgrind's memcheck, built in build-memcheck/ for x86-64-v3 (Valgrind 3.19 stops at AVX-512).
#
#   bash tests/memcheck.sh [RANKS...]       (1 and 2)
#
# Every error whose stack holds a function of our own is one; what MPI, its plugins and HDF5 do among themselves is
# suppressed (Open MPI's list, tests/memcheck.supp). Leaks are looked at without those of the libraries. Exit codes: 0
# none, or said that there is no Valgrind; 1 some.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
SECONDS=0
if ! command -v valgrind > /dev/null; then
  echo "NOT TESTED: no valgrind (apt-get install valgrind)"
  exit 0
fi
build=${FOURFOLD_MEMCHECK_BUILD:-build-memcheck}
. jobscripts/steps.sh
tests=(checkpoint_parts checkpoint_save checkpoint_async checkpoint_damage checkpoint_storage checkpoint_strict)
step configure cmake --preset memcheck -B "$build"
step build cmake --build "$build" --parallel "$cores" --target "${tests[@]}"

suppressions=(--suppressions=tests/memcheck.supp)
of_open_mpi=/usr/share/openmpi/openmpi-valgrind.supp
[ ! -r $of_open_mpi ] || suppressions+=("--suppressions=$of_open_mpi")
export OMPI_MCA_btl_vader_single_copy_mechanism=none # process_vm_readv writes what Valgrind does not see written
unset FOURFOLD_FULL
failed=0
check() { # NAME LAUNCHER...
  local name=$1 log=$logs/$1
  shift
  rm -f "$log".*
  "$@" valgrind --error-exitcode=99 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
    --num-callers=40 --max-stackframe=4194304 --log-file="$log.%p" "${suppressions[@]}" \
    "$build/tests/checkpoint/${name%_[0-9]*}" --gtest_filter=-*PeakMemory* > "$log.out" 2>&1
  local status=$?
  local errors
  errors=$(cat "$log".[0-9]* | sed -nE 's/.*ERROR SUMMARY: ([0-9]+) errors.*/\1/p' | awk '{ sum += $1 } END { print sum }')
  echo "$name: $(grep -cE '^.{0,12}\[ +OK ' "$log.out") tests, ${errors:-no} errors, exit code $status"
  [ "$status" = 0 ] || failed=1
}
check checkpoint_parts env
for ranks in "${@:-1 2}"; do
  for count in $ranks; do
    for name in checkpoint_save checkpoint_async checkpoint_damage checkpoint_storage checkpoint_strict; do
      check "${name}_$count" mpirun --oversubscribe --bind-to none -n "$count"
    done
  done
done
echo "tests/memcheck.sh: $([ $failed = 0 ] && echo "no errors" || echo "ERRORS: $logs/*.PID"), $(minutes $SECONDS)"
[ $failed = 0 ]
