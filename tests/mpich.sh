#!/usr/bin/env bash
# Fourfold with another MPI: Debian's MPICH and its parallel HDF5, built in build-mpich/ beside the usual build.
#
#   bash tests/mpich.sh            the modules comm and checkpoint, and their tests on 2 ranks
#   bash tests/mpich.sh --full     everything, on at most 4 ranks (long lists are sampled)
#
# Output of each step in build-mpich/logs/. Exit codes: 0 all passed, or said that the packages cannot be had; 1 not; 2
# wrong call.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
SECONDS=0
full=0
case "${1-} $#" in
  ' 0') ;;
  '--full 1') full=1 ;;
  *)
    echo "usage: bash tests/mpich.sh [--full]" >&2
    exit 2
    ;;
esac

if ! bash tests/install_packages.sh mpich; then
  echo "NOT TESTED: MPICH (its packages cannot be installed, see above)"
  exit 0
fi

build='build-mpich'
. jobscripts/steps.sh
options=()
if [ -n "${FOURFOLD_WERROR:-}" ] || [ "${CI:-}" = true ]; then options+=(-DFOURFOLD_WERROR=ON); fi
targets=(tests/comm/all tests/checkpoint/all)
others='_(1|3|4|8)$' # 2 ranks, and what needs no launcher
if [ "$full" = 1 ]; then
  targets=(all)
  others='_(6|8|12|16)$'
  options+=(-DFOURFOLD_TIMEOUT_FACTOR=6) # MPICH's ranks poll: four on two cores take a hundred times as long
fi
step configure cmake --preset mpich "${options[@]+"${options[@]}"}"
step build cmake --build "$build" --parallel "$cores" --target "${targets[@]}"

unset FOURFOLD_FULL
failed=0
run() { # FOLDER
  ctest --test-dir "$1" --parallel "$cores" --output-on-failure --no-tests=error -LE '^(full|slurm)$' -E "$others" 2>&1 |
    tee "$logs/$(basename "$1").log" | grep -vE '^ *Start |^ *[0-9]+/[0-9]+ Test +#.* Passed '
  [ "${PIPESTATUS[0]}" = 0 ] || failed=1
}
echo "== tests against MPICH"
if [ "$full" = 1 ]; then
  run $build
else
  for module in comm checkpoint; do run "$build/tests/$module"; done
fi
echo "tests/mpich.sh: $([ $failed = 0 ] && echo "all passed" || echo FAILED), $(minutes $SECONDS)"
[ $failed = 0 ]
