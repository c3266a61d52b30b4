# shellcheck shell=bash disable=SC2034
# Sourced by tests/run.sh, tests/mpich.sh and jobscripts/quickstart.sh, from the top folder: named steps with logs, and Open MPI's
# settings for a single machine.

build=${build:-build}
logs=$build/logs
cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc 2> /dev/null || echo 1)
mkdir -p "$logs" || exit 1

# shellcheck source-path=SCRIPTDIR source=machines/laptop/env.sh
. jobscripts/machines/laptop/env.sh

minutes() { printf '%d min %02d s' $(($1 / 60)) $(($1 % 60)); }

# step NAME COMMAND...: the output goes to build/logs/NAME.log, in a terminal to the screen too. Leaves the script when
# the command fails, with the end of the log and its name.
step() {
  local name=$1 log=$logs/$1.log start=$SECONDS status
  shift
  echo "== $name"
  if [ -t 1 ]; then
    "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
  else
    "$@" > "$log" 2>&1
    status=$?
  fi
  if [ "$status" -ne 0 ]; then
    [ -t 1 ] || tail -n 60 "$log"
    echo "$0: step '$name' failed (exit code $status); the whole log: $log" >&2
    exit 1
  fi
  echo "   $name: $(minutes $((SECONDS - start)))"
}
