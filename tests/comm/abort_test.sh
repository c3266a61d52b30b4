#!/bin/bash
# How jobs end: abort_test.sh PROBE CASE LAUNCHER... (the launcher without the rank count)
#   CASE: a mode of abort_probe.cpp, or one of the launcher_ cases below.
# The job must be gone within 10 seconds, its status must be right and the first line of the right rank.
set -u
probe=$1 case=$2
shift 2
launcher=("$@")
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

fail() {
  echo "FAILED $case: $*"
  echo "--- stdout"; cat "$out/out"
  echo "--- stderr"; cat "$out/err"
  exit 1
}

# run LIMIT COMMAND...: status in $status, seconds in $seconds
run() {
  local limit=$1 from
  shift
  from=$(date +%s.%N)
  timeout -k 1 "$limit" "$@" >"$out/out" 2>"$out/err"
  status=$?
  seconds=$(echo "$(date +%s.%N) - $from" | bc)
  [ $status -eq 124 ] || [ $status -eq 137 -a "${case#shared_}" != sigkill ] && fail "still there after $limit seconds"
  echo "$case: status $status after $seconds s"
}

expect_status() { [ "$status" -eq "$1" ] || fail "status $status instead of $1"; }
expect_first() { # the first line on stderr matches
  head -1 "$out/err" | grep -qE "$1" || fail "the first line does not match: $1"
}
expect_once() { [ "$(grep -cE "$1" "$out/err")" -eq 1 ] || fail "not exactly once: $1"; }

line='^rank 2 on [^ ]+, step 12, backward: '
case $case in
  none)       run 60 "${launcher[@]}" 4 "$probe" none; expect_status 0
              grep -q "done with 4 ranks" "$out/out" || fail "no last line" ;;
  throw)      run 10 "${launcher[@]}" 4 "$probe" throw; expect_status 1; expect_first "${line}the loader lost its file" ;;
  shared_none) run 60 "${launcher[@]}" 4 "$probe" shared_none; expect_status 0 ;;
  shared_elsewhere) # rank 2 goes by messages, the others do not
              run 10 "${launcher[@]}" 4 "$probe" "$case"; expect_status 1
              expect_first "^rank [013] on .*group 'world', rank [013]: the buffer of rank 2 lies in no shared memory" ;;
  shared_throw) run 10 "${launcher[@]}" 4 "$probe" shared_throw; expect_status 1
              expect_first "${line}the loader lost its file" ;;
  fail_one)   run 10 "${launcher[@]}" 4 "$probe" fail_one; expect_status 4; expect_first "${line}the disk is full" ;;
  assert)     run 10 "${launcher[@]}" 4 "$probe" assert; expect_status 1; expect_first "${line}.*rows come from the loader" ;;
  bad_alloc)  run 10 "${launcher[@]}" 4 "$probe" bad_alloc; expect_status 1; expect_first "${line}out of memory .operator new" ;;
  length)     run 10 "${launcher[@]}" 4 "$probe" length; expect_status 1; expect_first "${line}.*reserve" ;;
  segv|null)  run 10 "${launcher[@]}" 4 "$probe" "$case"; expect_status 1; expect_first "${line}segmentation fault" ;;
  fpe)        run 10 "${launcher[@]}" 4 "$probe" fpe; expect_status 1; expect_first "${line}arithmetic error" ;;
  abort)      run 10 "${launcher[@]}" 4 "$probe" abort; expect_status 1; expect_first "${line}aborted" ;;
  terminate)  run 10 "${launcher[@]}" 4 "$probe" terminate; expect_status 1; expect_first "${line}a destructor failed" ;;
  pending)    run 10 "${launcher[@]}" 4 "$probe" pending; expect_status 1; expect_first "${line}thrown past a receive" ;;
  exit0)      run 10 "${launcher[@]}" 4 "$probe" exit0; expect_status 1; expect_first "${line}exit\(\) was called in mid-run" ;;
  quick_exit) run 10 "${launcher[@]}" 4 "$probe" quick_exit # past every handler: the launcher's to see
              [ "$status" -ne 0 ] || fail "status 0" ;;
  sigkill|shared_sigkill) # a killed rank says nothing: the launcher names it, unless it is told to be quiet as our scripts do
              run 10 env OMPI_MCA_orte_execute_quiet=0 "${launcher[@]}" 4 "$probe" "$case"
              [ "$status" -ne 0 ] || fail "status 0"
              grep -qiE "rank 2|exited on signal 9|KILLED" "$out/err" "$out/out" || fail "the launcher does not name the rank" ;;
  lonely_all) run 18 "${launcher[@]}" 4 "$probe" lonely_all; expect_status 2 # 8 s of waiting for the others
              expect_first "${line}only this rank thinks so" ;;
  all)        run 20 "${launcher[@]}" 4 "$probe" all; expect_status 2
              expect_first '^fourfold: error: line 3: model.heads'; expect_once 'model.heads' ;;
  all_pending) run 10 "${launcher[@]}" 4 "$probe" all_pending; expect_status 2
              expect_first '^fourfold: error: an error of all ranks'; expect_once 'an error of all ranks' ;;
  single)     run 10 "$probe" none; expect_status 0
              grep -q "done with 1 ranks" "$out/out" || fail "no last line"
              run 10 "$probe" throw; expect_status 1; expect_first '^rank 0 on [^ ]+, step 12, backward: the loader' ;;
  launcher_mismatch)
              run 10 env SLURM_NTASKS=4 SLURM_PROCID=2 SLURM_STEP_ID=0 "$probe" none; expect_status 3
              expect_first '^fourfold: error: the launcher and MPI disagree: srun \(SLURM_NTASKS=4\).* process 2 of 4'
              grep -q "mpirun -n 4" "$out/err" || fail "the fix is not there"
              run 10 env SLURM_NTASKS=4 SLURM_PROCID=2 SLURM_STEP_ID=0 FOURFOLD_SINGLE=1 "$probe" none; expect_status 0
              run 10 env SLURM_NTASKS=4 SLURM_PROCID=2 "$probe" none; expect_status 0
              # As Slurm really starts it: Open MPI without Slurm support would end inside MPI_Init, with status 1.
              slurm=(SLURM_NTASKS=4 SLURM_PROCID=2 SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_JOBID=3 SLURM_NODELIST=x)
              run 10 env "${slurm[@]}" FOURFOLD_SINGLE=1 "$probe" none; expect_status 0
              run 10 env "${slurm[@]}" "$probe" none; expect_status 3
              expect_once '^fourfold: error: the launcher and MPI disagree' ;;
  *)          fail "no such case" ;;
esac
echo "ok"
