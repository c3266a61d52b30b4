#!/usr/bin/env bash
# Installs what is missing, configures, builds, and runs the tests through CTest.
#
#   bash tests/run.sh                  long lists are sampled, with a printed seed (FOURFOLD_SEED=N repeats one)
#   bash tests/run.sh --full [LABEL]   every number that the issues name; LABEL (issue2, ...) restricts to one issue;
#                                      all of them and issue9: everything against MPICH too (tests/mpich.sh)
#
# The build folder build/ is kept and reused; each step's output is in build/logs/. With CI=true or FOURFOLD_WERROR=ON
# warnings are errors. MPIEXEC names another launcher than mpirun.
# The last line but one is "N passed, N failed", the last the wall time. Exit codes: 0 all passed, 1 not, 2 wrong call.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
SECONDS=0

full=0
label=
while [ $# -gt 0 ]; do
  case $1 in
    --full) full=1 ;;
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    -*)
      echo "tests/run.sh: unknown option $1; usage: bash tests/run.sh [--full [LABEL]]" >&2
      exit 2
      ;;
    *)
      if [ "$full" = 0 ] || [ -n "$label" ]; then
        echo "tests/run.sh: unexpected argument $1; usage: bash tests/run.sh [--full [LABEL]]" >&2
        exit 2
      fi
      label=$1
      ;;
  esac
  shift
done

. jobscripts/steps.sh

step install bash tests/install_packages.sh build test
case $full$label in
  1 | 1slurm | 1issue9) bash tests/install_packages.sh slurm || echo "NOT TESTED: the job scripts under a real Slurm (above)" ;;
esac

options=(-DFOURFOLD_TESTS=ON)
if [ "${CI:-}" = true ]; then options+=(-DFOURFOLD_WERROR=ON); fi
if [ -n "${FOURFOLD_WERROR:-}" ]; then options+=("-DFOURFOLD_WERROR=$FOURFOLD_WERROR"); fi
if [ -n "${MPIEXEC:-}" ]; then options+=("-DMPIEXEC_EXECUTABLE=$(command -v "$MPIEXEC")"); fi
# Full lists take longer than the samples that the timeouts are made for.
if [ "$full" = 1 ]; then options+=(-DFOURFOLD_TIMEOUT_FACTOR=10); else options+=(-DFOURFOLD_TIMEOUT_FACTOR=1); fi
step configure cmake --preset release "${options[@]}"
step build cmake --build "$build" --parallel "$cores"

export OMPI_MCA_mpi_yield_when_idle=1 # tests have more ranks than cores

select=()
if [ "$full" = 1 ]; then
  export FOURFOLD_FULL=1
  [ -z "$label" ] || select=(-L "^$label\$")
else
  select=(-LE '^(full|slurm)$')
fi
echo "== tests${label:+ of $label}$([ "$full" = 0 ] || echo ", full lists")"
log=$logs/tests.log
start=$SECONDS
ctest --test-dir "$build" --parallel "$cores" --output-on-failure --no-tests=error "${select[@]}" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
echo "   tests: $(minutes $((SECONDS - start)))"

mpich=0
case $full$label in
  1 | 1issue9) bash tests/mpich.sh --full || mpich=1 ;;
esac

# What this machine cannot show.
if ! sed -n '/NOT BUILT, NOT TESTED/{s/^-- //p;q1}' "$logs/configure.log"; then
  : # said: nothing for GPUs was built
elif ! nvidia-smi -L 2> /dev/null | grep -q GPU; then
  echo "NOT TESTED: no GPU on this machine; cuBLASLt products and NCCL collectives were compiled, their errors tested"
fi

[ "$full" = 1 ] || echo "NOT TESTED here: the job scripts under a real Slurm (.ci/run, bash tests/run.sh --full slurm), another MPI (bash tests/mpich.sh)"

# "97% tests passed, 1 tests failed out of 33"
summary=$(grep -E '^[0-9]+% tests passed, [0-9]+ tests? failed out of [0-9]+' "$log" | tail -n 1)
failed=$(printf '%s' "$summary" | sed -E 's/.*passed, ([0-9]+) tests? failed.*/\1/')
total=$(printf '%s' "$summary" | sed -E 's/.*out of ([0-9]+).*/\1/')
if [ -z "$summary" ]; then
  echo "tests/run.sh: CTest ran no test${label:+ with the label $label}; the whole log: $log" >&2
  exit 1
fi
if [ "$status" -ne 0 ]; then echo "tests/run.sh: tests failed; the whole log: $log" >&2; fi
if [ "$mpich" -ne 0 ]; then echo "tests/run.sh: with MPICH tests failed (above)" >&2; fi
echo "$((total - failed)) passed, $failed failed"
echo "tests/run.sh: $(minutes $SECONDS) in all"
[ "$status" -eq 0 ] && [ "$mpich" -eq 0 ]
