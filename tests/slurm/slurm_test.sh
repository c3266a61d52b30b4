#!/usr/bin/env bash
# slurm_test.sh FOURFOLD FOURFOLD_FAULTS SOURCE: the scripts of jobscripts/ and of `fourfold study --sbatch` under a real Slurm
# of eight virtual nodes on this host (see cluster.sh): queue, output, exit codes, refusals, a chain of jobs cut by signals, by
# the time limit and by requeueing, a crashed rank, scaling studies as arrays and as parts. Every broken run ends with the final
# checkpoint of an unbroken one, byte for byte. FOURFOLD_FULL=1: also a node that fails, mpirun as launcher, cuts at random
# steps.
# Nothing here depends on how fast the machine is: runs wait at gates (FOURFOLD_FAULT=gate: a step waits while the file
# gate.STEP is there), the test waits for states, and its limits are for hangs alone.
# Exit codes: 0 passed, 1 not, 77 not tested: there is no Slurm here.
# shellcheck disable=SC2015,SC2016,SC2030,SC2031,SC2317
set -u
fourfold=$1
faults=$2
source=$3
patience=300 # seconds, for what has to happen at all
# shellcheck source-path=SCRIPTDIR source=cluster.sh
. "$(dirname "$0")/cluster.sh"

missing=$(what_is_missing)
if [ -n "$missing" ]; then
  echo "NOT TESTED: the job scripts under a real Slurm: $missing"
  exit 77
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/fourfold-jobs.XXXXXX")
: > "$work/failures"
finish() {
  stop_cluster
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 1' INT TERM
if ! start_cluster 8 2; then
  echo "FAILED: Slurm does not start:"
  tail -n 5 "$cluster"/log/*
  exit 1
fi
echo "Slurm with 8 virtual nodes is up after $SECONDS s"

# What a user does first; and Open MPI between nodes that are one host, with more ranks than cores.
# shellcheck source=/dev/null
. "$source/jobscripts/machines/generic/env.sh"
export FOURFOLD_PROGRAM=$faults FOURFOLD_FAULT=gate FOURFOLD_SHARE_CORES=1 FOURFOLD_SELFTEST=0
export OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
scripts=$source/jobscripts
cd "$work" || exit 1

for i in $(seq 1 3000); do echo "line $i of a text in which $((i * 7 % 13)) follows $((i % 10))"; done > text.txt
cat > small.yaml << DECK
run:        {name: small, folder: run, steps: 60, seed: 11}
model:      {kind: transformer, layers: 2, hidden: 48, heads: 3, kv_heads: 1, head_dim: 16, vocab: 257, sequence: 32,
             positions: rope, norm: rms, ffn: {kind: swiglu, hidden: 96}, dropout: 0.1}
data:       {train: [text.txt], valid_fraction: 0.05}
batch:      {global: 24}
optimizer:  {kind: adamw, lr: 3.0e-3, weight_decay: 0.1, clip: 1.0, schedule: {kind: cosine, warmup: 5, final: 3.0e-4}}
precision:  {compute: fp32}
numerics:   {deterministic: true}
eval:       {every: 30, samples: 60}
checkpoint: {every: 15, keep: 2}
DECK
final=checkpoints/step_00000060.h5

fail() {
  echo "FAILED: $*"
  echo x >> "$work/failures"
}

field() { scontrol -o show job "$1" | grep -o " $2=[^ ]*" | head -n 1 | cut -d= -f2-; } # JOB NAME
in_state() { [ "$(field "$1" JobState)" = "$2" ]; }
has_ended() { case $(field "$1" JobState) in COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL) ;; *) false ;; esac }
was_requeued() { [ "$(field "$1" Restarts)" -ge 1 ]; }
was_requeued_times() { [ "$(field "$1" Restarts)" -ge "$2" ]; }
submit() { sbatch --parsable "$@"; }
# step_of RUN: the newest step of its metrics.
step_of() { sed -n '/"event"/d; s/^{"step":\([0-9]*\),.*/\1/p' "$1/metrics.jsonl" 2> /dev/null | tail -n 1 | grep . || echo 0; }
has_step() { [ "$(step_of "$1")" -ge "$2" ]; }
lines_with() { [ "$(grep -c -- "$2" "$1" 2> /dev/null)" -ge "$3" ]; } # FILE TEXT COUNT

# at_gate RUN STEP: the run waits before that step; open_gate STEP lets it go on.
at_gate() { wait_until $patience has_step "$1" $(($2 - 1)); }
open_gate() { rm -f "gate.$1"; }

# requeued JOB OUTPUT COUNT WHAT: the script says so for the COUNT-th time.
requeued() { wait_until $patience lines_with "$2" 'is requeued' "$3" || fail "$4: not requeued: $(tail -n 5 "$2")"; }

# ended JOB CODE OUTPUT WHAT: waits for its end and looks at the exit code.
ended() {
  wait_until $patience has_ended "$1" || fail "$4: job $1 is $(field "$1" JobState) after $patience s: $(tail -n 3 "$3" 2> /dev/null)"
  [ "$(field "$1" ExitCode)" = "$2" ] ||
    fail "$4: job $1 is $(field "$1" JobState) with $(field "$1" ExitCode), not $2: $(tail -n 5 "$3")"
}
same_as() { cmp "$1/run/$final" "$2/run/$final" || fail "$1: the final checkpoint is not that of $2"; }

own_folder() { mkdir "$1" && cp -s "$work/text.txt" "$work/small.yaml" "$1"; }

# The unbroken runs, on 1, 2 and 4 nodes at once: queue, output, self-test, exit code, checkpoint.
case_plain() {
  local nodes per_node job jobs=() index=0
  export FOURFOLD_SELFTEST=1
  for nodes in 1 2 4; do
    per_node=$((nodes == 1 ? 2 : 1))
    own_folder $nodes
    : > $nodes/gate.3
    jobs+=("$(submit -D $nodes -N $nodes --ntasks-per-node=$per_node -t 30 "$scripts/train.sbatch" small.yaml)")
  done
  wait_until $patience in_state "${jobs[2]}" RUNNING || fail "plain: job ${jobs[2]} does not start"
  [ "$(squeue -h -j "${jobs[2]}" -o '%T %D %j')" = "RUNNING 4 fourfold" ] || fail "plain: the queue: $(squeue -h)"
  rm -f {1,2,4}/gate.3
  for nodes in 1 2 4; do
    job=${jobs[index++]}
    ended "$job" 0:0 "$nodes/fourfold-$job.out" "plain, $nodes nodes"
    per_node=$((nodes == 1 ? 2 : 1))
    [ "$(grep -c '^rank=.* pmi=pmix .* folder=seen$' "$nodes/fourfold-$job.out")" = $((nodes * per_node)) ] || fail "plain, $nodes nodes: the ranks' lines"
    [ "$(grep -o '^rank=[0-9]* node=[^ ]*' "$nodes/fourfold-$job.out" | cut -d' ' -f2 | sort -u | wc -l)" = $nodes ] ||
      fail "plain, $nodes nodes: other nodes"
    grep -qE "^ranks +ok +$((nodes * per_node)) ranks on $nodes node" "$nodes/fourfold-$job.out" && grep -q '^selftest: .* all well$' "$nodes/fourfold-$job.out" ||
      fail "plain, $nodes nodes: the self-test: $(cat "$nodes/fourfold-$job.out")"
    grep -q "small: $((nodes * per_node)) ranks" "$nodes/fourfold-$job.out" || fail "plain, $nodes nodes: the program's ranks"
    grep -q 'train.sbatch: exit code 0: done; step 60 of 60 is saved' "$nodes/fourfold-$job.out" || fail "plain, $nodes nodes: the last line"
    [ -e $nodes/run/checkpoints/step_00000060.commit ] || fail "plain, $nodes nodes: no final checkpoint"
  done
}

# One job id, five lives: a signal to the ranks, the time limit's warning to the script, an operator's requeue, a signal to
# the script.
case_chain() {
  local job out step
  for step in 8 20 35 47; do : > gate.$step; done
  job=$(submit -N 2 --ntasks-per-node=1 -t 30 --signal=B:USR1@50 "$scripts/restart_chain.sbatch" small.yaml)
  out=fourfold-chain-$job.out
  at_gate run 8 || fail "chain: no first job: $(tail -n 5 "$out")"
  scancel --signal=USR1 "$job"
  open_gate 8
  requeued "$job" "$out" 1 "chain, a signal to the ranks"
  at_gate run 20 || fail "chain: no second job: $(tail -n 5 "$out")"
  scontrol update "jobid=$job" timelimit=1 # 50 s before its end: now, or within Slurm's half minute
  wait_until $patience lines_with "$out" 'SIGUSR1: the ranks are told' 1 || fail "chain: no warning before the time limit"
  scontrol update "jobid=$job" timelimit=30
  open_gate 20
  requeued "$job" "$out" 2 "chain, the time limit's warning"
  at_gate run 35 || fail "chain: no third job: $(tail -n 5 "$out")"
  scontrol requeue "$job"
  wait_until $patience was_requeued_times "$job" 3 || fail "chain: the operator's requeue"
  open_gate 35
  at_gate run 47 || fail "chain: no fourth job: $(tail -n 5 "$out")"
  scancel --batch --signal=USR1 "$job"
  wait_until $patience lines_with "$out" 'SIGUSR1: the ranks are told' 2 || fail "chain: the script got no signal"
  open_gate 47
  requeued "$job" "$out" 3 "chain, a signal to the script"
  ended "$job" 0:0 "$out" chain
  grep -q 'the last step is committed, the chain ends' "$out" || fail "chain: its end: $(tail -n 3 "$out")"
  [ "$(field "$job" Restarts)" = 4 ] || fail "chain: $(field "$job" Restarts) restarts"
  # The requeued life may or may not come to its save and its line.
  [ "$(grep -c ' exit 75$' run/chain.log)" -ge 3 ] && grep -q -- '-> 60 exit 0$' run/chain.log || fail "chain: $(cat run/chain.log)"
  cat run/chain.log
}

# Where requeueing is refused: a successor job. The signal goes to the script, which tells the ranks.
case_successor() {
  local job next out
  : > gate.8
  job=$(submit -N 1 --ntasks-per-node=2 -t 30 --no-requeue "$scripts/restart_chain.sbatch" small.yaml)
  out=fourfold-chain-$job.out
  at_gate run 8
  scancel --batch --signal=USR1 "$job"
  wait_until $patience lines_with "$out" 'SIGUSR1: the ranks are told' 1
  open_gate 8
  ended "$job" 75:0 "$out" successor
  next=$(sed -n 's/.*not allowed here: job \([0-9]*\) follows.*/\1/p' "$out")
  [ -n "$next" ] || {
    fail "successor: none: $(tail -n 5 "$out")"
    return
  }
  ended "$next" 0:0 "$out" successor
  [ "$(field "$next" TimeLimit) $(field "$next" NumNodes) $(field "$next" Requeue)" = "00:30:00 1 0" ] || fail "successor: another kind of job"
  grep -q "job $next restart 0 .* -> 60 exit 0" run/chain.log || fail "successor: $(cat run/chain.log)"
}

# rank_processes JOB: those of the program, on all virtual nodes.
rank_processes() {
  local folder
  for folder in /proc/[0-9]*; do
    [ "$(cat "$folder/comm" 2> /dev/null)" = "$(basename "$faults" | cut -c1-15)" ] || continue
    tr '\0' '\n' < "$folder/environ" 2> /dev/null | grep -qx "SLURM_JOB_ID=$1" && echo "${folder#/proc/}"
  done
}

# A rank is killed: the job ends soon, is not requeued, and says what to type; that goes on from the last checkpoint.
case_crash() {
  local job out victim again
  : > gate.18
  job=$(submit -N 2 --ntasks-per-node=1 -t 30 "$scripts/restart_chain.sbatch" small.yaml)
  out=fourfold-chain-$job.out
  at_gate run 18
  victim=$(rank_processes "$job" | tail -n 1)
  [ -n "$victim" ] && kill -KILL "$victim" || fail "crash: no rank to kill"
  wait_until $patience has_ended "$job" || fail "crash: the job does not end"
  [ "$(field "$job" JobState) $(field "$job" Restarts)" = "FAILED 0" ] || fail "crash: $(field "$job" JobState), $(field "$job" Restarts) restarts"
  grep -q 'error: a fault would come again, so the chain ends' "$out" || fail "crash: $(tail -n 5 "$out")"
  grep -q 'type:  sbatch -N 2 .*goes on from step [1-4][05])' "$out" || fail "crash: what to type: $(tail -n 3 "$out")"
  [ -z "$(rank_processes "$job")" ] || fail "crash: ranks are left over"
  open_gate 18
  again=$(submit -N 2 --ntasks-per-node=1 -t 30 "$scripts/train.sbatch" small.yaml)
  ended "$again" 0:0 "fourfold-$again.out" "crash, resumed"
  grep -q 'step [1-4][05] of 60' "fourfold-$again.out" || fail "crash: resumed from the start"
}

# Ranks that leave with 75 one after the other: none is ended by the launcher for the code of another.
case_again() {
  srun -N 2 -n 2 --kill-on-bad-exit=1 "$scripts/rank.sh" again bash -c 'sleep $((2 * SLURM_PROCID)); echo "rank $SLURM_PROCID"; exit 75' > again.out 2> again.err ||
    fail "again: exit code $?: $(cat again.out again.err)"
  [ -e again ] || fail "again: rank 0 did not say so"
  [ "$(sort again.out)" = $'rank 0\nrank 1' ] || fail "again: $(cat again.out)"
}

# early COMMAND: signals that come before the program listens, while it starts COMMAND. Not fatal, and what the script was told
# is not lost: the run stops before its gate.
early() {
  local job out
  printf '#!/bin/sh\nif [ "$1" = %s ]; then : > waiting.$SLURM_PROCID; while [ ! -e go ]; do sleep 0.1; done; fi\nexec "%s" "$@"\n' "$1" "$faults" > slow_start
  chmod +x slow_start
  : > gate.12
  job=$(FOURFOLD_PROGRAM=$PWD/slow_start submit -N 1 --ntasks-per-node=2 -t 30 "$scripts/train.sbatch" small.yaml)
  out=fourfold-$job.out
  wait_until $patience test -e waiting.0 -a -e waiting.1 || fail "early, $1: no start"
  scancel --signal=USR1 "$job"
  scancel --batch --signal=USR1 "$job"
  # The script hands it on where the ranks train already; before that it waits for the end of what runs.
  [ "$1" != train ] || wait_until $patience test -e run/STOP || fail "early, $1: the script got no signal"
  : > go
  wait_until 60 has_ended "$job" || open_gate 12
  ended "$job" 75:0 "$out" "early, $1"
  has_step run 12 && fail "early, $1: stopped only after step $(step_of run)"
  [ ! -e run/STOP ] || fail "early, $1: the stop file is left over"
}
case_early() { early train; }
case_earlier() {
  export FOURFOLD_SELFTEST=1
  early selftest
}

# A scaling study; one repeat is cancelled; the same command runs only that one again.
case_scaling() {
  local jobs table
  study() { SBATCH_TIMELIMIT=30 FOURFOLD_RANKS_PER_NODE=1 FOURFOLD_REPEATS=2 bash "$scripts/scaling.sbatch" strong 1,2,4 small.yaml run.steps=10 run.folder=study; }
  study > study.1 || fail "scaling: $(cat study.1)"
  mapfile -t jobs < <(grep -o 'job [0-9]*' study.1 | cut -d' ' -f2)
  [ ${#jobs[@]} = 4 ] || fail "scaling: $(cat study.1)"
  scancel "${jobs[1]}_2" # before it starts
  wait_until $patience has_ended "${jobs[3]}" || fail "scaling: the table's job does not end"
  [ "$(field "${jobs[3]}" ExitCode)" = 1:0 ] || fail "scaling: a failed point, and exit code $(field "${jobs[3]}" ExitCode)"
  grep -q '^failed: 2 nodes, repeat 2, job -: has not run$' study-strong/table.txt || fail "scaling: $(cat study-strong/table.txt)"
  find study-strong -name metrics.jsonl -exec stat -c '%n %Y' {} + | sort > before
  study > study.2
  mapfile -t jobs < <(grep -o 'job [0-9]*' study.2 | cut -d' ' -f2)
  wait_until $patience has_ended "${jobs[3]}" || fail "scaling, again: the table's job does not end"
  [ "$(field "${jobs[3]}" ExitCode)" = 0:0 ] || fail "scaling, again: exit code $(field "${jobs[3]}" ExitCode)"
  find study-strong -name metrics.jsonl -exec stat -c '%n %Y' {} + | sort > after
  [ "$(wc -l < after)" = 6 ] && [ -z "$(comm -23 before after)" ] || fail "scaling, again: finished repeats ran again"
  table=$(cat study-strong/table.txt)
  echo "$table"
  [ "$(grep -cE '^ +(1 +1|2 +2|4 +4) +24 .* - +- +2 of 2$' <<< "$table")" = 3 ] || fail "scaling: the table's rows: $table"
  # Every rank had a core of its own only where the host has four.
  [ "$(nproc)" -ge 4 ] || grep -q '^OVERSUBSCRIBED' <<< "$table" || fail "scaling: oversubscribed times are called a measure"
}

# refused CODE TEXT SCRIPT ARGUMENTS...: the job ends with CODE and says TEXT, and what to type.
refused() {
  local code=$1 text=$2 job
  shift 2
  job=$(submit -t 30 --output=refused-%j.out "$@")
  ended "$job" "$code:0" "refused-$job.out" "refused: $text"
  grep -q -- "$text" "refused-$job.out" && grep -q '^  where: job ' "refused-$job.out" && grep -q '^  type:  .' "refused-$job.out" ||
    fail "no '$text' in: $(cat "refused-$job.out")"
}
case_refused() {
  local train=$scripts/train.sbatch
  refused 2 'does not pass on 2 ranks' -N 1 --ntasks-per-node=2 "$train" small.yaml batch.global=25
  refused 2 'no deck' -N 1 "$train"
  FOURFOLD_MPI_TYPE=nonsense refused 3 'has no --mpi=nonsense, which' -N 1 "$train" small.yaml
  FOURFOLD_MPI_TYPE=none refused 3 '2 of 2 ranks were not told' -N 2 --ntasks-per-node=1 "$train" small.yaml
  FOURFOLD_PROGRAM=$work/none refused 3 'none is no program' -N 1 "$train" small.yaml
  FOURFOLD_SHARE_CORES=0 OMP_NUM_THREADS=2 refused 3 '2 ranks of 2 thread(s) on a node, but' -N 1 --ntasks-per-node=2 "$train" small.yaml
  if [ "$(nproc)" -lt 4 ]; then
    FOURFOLD_SHARE_CORES=0 refused 3 '4 ranks of 1 thread(s) share the core(s)' -N 2 --ntasks-per-node=2 "$train" small.yaml
  else
    echo "NOT TESTED: ranks piled on one core: this host has four"
  fi
  FOURFOLD_SELFTEST=1 FOURFOLD_FAULT='inf rank=1 phase=collectives' refused 1 'this allocation is not fit to run' -N 2 --ntasks-per-node=1 "$train" small.yaml
  refused 4 'cannot make the run folder' -N 1 "$train" small.yaml run.folder=small.yaml/run
}

# Without Slurm, by mpirun: the same script.
case_laptop() {
  (
    unset FOURFOLD_LAUNCHER
    # shellcheck source=/dev/null
    . "$scripts/machines/laptop/env.sh"
    export FOURFOLD_LAUNCH_OPTIONS="--bind-to none" FOURFOLD_RANKS_PER_NODE=2
    bash "$scripts/train.sbatch" small.yaml > laptop.out 2>&1 || fail "laptop: exit code $?: $(tail -n 5 laptop.out)"
    bash "$scripts/restart_chain.sbatch" small.yaml > refused.out 2>&1
    [ $? = 3 ] && grep -q 'a chain is made of jobs' refused.out || fail "laptop: a chain: $(cat refused.out)"
  )
}

# The limit itself, without a warning before it: SIGTERM, a save, and requeued before Slurm ends the script.
case_limit() {
  local job out
  : > gate.8
  job=$(submit -N 1 --ntasks-per-node=2 -t 1 --signal=B:URG@10 "$scripts/restart_chain.sbatch" small.yaml)
  out=fourfold-chain-$job.out
  at_gate run 8 || fail "limit: no start: $(tail -n 5 "$out")"
  wait_until $patience lines_with "$out" 'DUE TO TIME LIMIT' 1 || fail "limit: it does not come"
  open_gate 8
  requeued "$job" "$out" 1 limit
  scontrol update "jobid=$job" timelimit=30
  ended "$job" 0:0 "$out" limit
}

# A node fails: Slurm itself has the job run again.
case_node() {
  local job out node
  : > gate.18
  job=$(submit -N 2 --ntasks-per-node=1 -t 30 "$scripts/restart_chain.sbatch" small.yaml)
  out=fourfold-chain-$job.out
  at_gate run 18
  node=$(scontrol show hostnames "$(field "$job" NodeList)" | tail -n 1)
  scontrol update "nodename=$node" state=down reason=test
  wait_until $patience was_requeued "$job"
  scontrol update "nodename=$node" state=resume
  open_gate 18
  ended "$job" 0:0 "$out" node
  [ "$(field "$job" Restarts)" -ge 1 ] || fail "node: not requeued"
}

# mpirun as launcher: what the script hands on reaches the ranks on both nodes.
case_mpirun() {
  local job out
  : > gate.8
  job=$(FOURFOLD_LAUNCHER=mpirun submit -N 2 --ntasks-per-node=1 -t 30 "$scripts/restart_chain.sbatch" small.yaml)
  out=fourfold-chain-$job.out
  at_gate run 8
  scancel --batch --signal=USR1 "$job"
  wait_until $patience lines_with "$out" 'SIGUSR1: the ranks are told' 1
  open_gate 8
  requeued "$job" "$out" 1 mpirun
  ended "$job" 0:0 "$out" mpirun
  [ "$(grep -c ' exit 75$' run/chain.log)" = 1 ] || fail "mpirun: $(cat run/chain.log)"
}

# Signals of all kinds at random steps, until the run has had six lives.
case_random() {
  local job out life kinds=(USR1 USR2 TERM) how step=0
  RANDOM=${FOURFOLD_SEED:-20261201}
  for life in 1 2 3 4 5; do
    step=$((step + 2 + RANDOM % 9))
    : > gate.$step
  done
  job=$(submit -N 2 --ntasks-per-node=1 -t 30 "$scripts/restart_chain.sbatch" small.yaml)
  out=fourfold-chain-$job.out
  for life in 1 2 3 4 5; do
    step=$(find . -name 'gate.*' | sed 's/.*\.//' | sort -n | head -n 1)
    at_gate run "$step"
    how=$((RANDOM % 3))
    case $how in
      0) scancel --signal="${kinds[RANDOM % 3]}" "$job" ;;
      1) scancel --batch --signal=USR1 "$job" ;;
      2) scancel --full --signal=USR1 "$job" ;;
    esac
    [ $how = 0 ] || wait_until $patience lines_with "$out" 'SIGUSR1: the ranks are told' 1
    [ $((RANDOM % 2)) = 0 ] || sleep 0.3
    open_gate "$step"
    requeued "$job" "$out" $life "random: life $life (way $how)"
  done
  ended "$job" 0:0 "$out" random
}

# A scaling study over 1, 2 and 4 nodes as the parts that `fourfold study --sbatch` writes: the part of 2 ranks is ended in the
# middle of a trial, the same command goes on, and every figure of the report is that of the rows of its trials.
case_study() {
  local job part before out
  cat > study.yaml << DECK
study:      {name: nodes, folder: nodes, kind: scaling, scaling: strong, ranks: [1, 2, 4], strategies: [ddp, fsdp], repeats: 2}
run:        {steps: 12, seed: 3}
model:      {kind: transformer, layers: 2, hidden: 48, heads: 3, head_dim: 16, vocab: 257, sequence: 32}
data:       {kind: synthetic, synthetic: dyadic, samples: 96}
batch:      {global: 12}
optimizer:  {kind: adamw, lr: 1.0e-3}
emulate:    {machine: $source/inputs/machines/two_level.yaml}
DECK
  export FOURFOLD_RANKS_PER_NODE=1 SBATCH_TIMELIMIT=30
  submit_all() {
    "$fourfold" study study.yaml --sbatch jobs > /dev/null && bash jobs/submit.sh > "$1" || fail "study: $(cat "$1")"
    job=$(sed -n 's/^report: job //p' "$1")
    part=$(sed -n 's/^2 ranks: job //p' "$1")
  }
  rows() { cat nodes/trials.*jsonl 2> /dev/null | grep -c '"done":'; }
  enough_rows() { [ "$(rows)" -ge "$1" ]; }
  submit_all first
  scontrol hold "$part" || fail "study: cannot hold the part of 2 ranks"
  wait_until $patience enough_rows 4 || fail "study: no part of one rank: $(tail -n 5 nodes-1-*.out)"
  : > gate.7 # the first trial on two nodes stops here
  scontrol release "$part"
  wait_until $patience has_state_or_ended "$part" || fail "study: the part of 2 ranks does not start"
  wait_until $patience waiting_at nodes 7 || fail "study: no trial waits at the gate"
  scancel "$part"
  wait_until $patience has_ended "$part"
  open_gate 7
  wait_until $patience has_ended "$job" || fail "study: the report's job does not end"
  before=$(rows)
  [ "$before" -lt 12 ] || fail "study: nothing was missing after a part was ended: $before rows"
  [ "$(field "$job" ExitCode)" = 0:0 ] || fail "study: the report of what there is: $(tail -n 5 nodes-report-"$job".out)"
  cp nodes/table.csv table.before
  submit_all second
  wait_until $patience has_ended "$job" || fail "study, again: the report's job does not end"
  [ "$(rows)" = 12 ] || fail "study, again: $(rows) rows, $before before"
  out=nodes-report-$job.out
  grep -q '12 of 12 trials done, 0 failed, 0 missing' nodes/report.md || fail "study, again: $(cat "$out")"
  tail -n +2 table.before | while IFS= read -r row; do grep -qxF -- "$row" nodes/table.csv || fail "study: a row changed: $row"; done
  [ "$(cut -d, -f1 nodes/table.csv | sort | uniq -d | wc -l)" = 0 ] || fail "study: a trial twice"
  python3 "$source/tests/app/study_figures.py" nodes || fail "study: figures that no row has"
  if python3 -c 'import matplotlib' 2> /dev/null || /usr/bin/python3 -c 'import matplotlib' 2> /dev/null; then
    [ -s nodes/plots/1_speed_up.png ] || fail "study: no plot: $(cat "$out")"
  fi
  sed -n '/^| point/,/^$/p' nodes/report.md | head -n 10
}
has_state_or_ended() { in_state "$1" RUNNING || has_ended "$1"; }
# waiting_at STUDY STEP: a trial's metrics end just before the step.
waiting_at() {
  local metrics
  for metrics in "$1"/trials/*/metrics.jsonl; do [ "$(step_of "$(dirname "$metrics")")" = $(($2 - 1)) ] && return; done
  return 1
}

# Side by side: most of the time goes into waiting for Slurm.
cases=(plain chain successor crash again early earlier scaling study refused laptop limit)
[ "${FOURFOLD_FULL:-0}" != 1 ] || cases+=(node mpirun random)
begin=$SECONDS
running=()
for name in "${cases[@]}"; do
  (
    start=$SECONDS
    own_folder "$name"
    cd "$name" || exit 1
    "case_$name" > ../"$name.log" 2>&1
    echo "   $name: $((SECONDS - start)) s"
  ) &
  running+=("$!")
done
wait "${running[@]}"
for name in chain crash; do same_as $name plain/2; done
for name in successor laptop limit; do same_as $name plain/1; done
if [ "${FOURFOLD_FULL:-0}" = 1 ]; then
  for name in node mpirun random; do same_as $name plain/2; done
fi
for name in "${cases[@]}"; do
  [ ! -s "$name.log" ] || { echo "-- $name" && cat "$name.log"; }
done

echo "jobs: $(wc -l < "$cluster/log/finished") in $((SECONDS - begin)) s"
pattern="${cluster%?}[${cluster: -1}]" # does not match itself
stop_cluster
left=$(env -u SLURM_CONF grep -lsa -- "$pattern" /proc/[0-9]*/environ /proc/[0-9]*/cmdline)
[ -z "$left" ] || fail "processes are left over: $left"
count=$(wc -l < "$work/failures")
echo "$count failures, $SECONDS s"
[ "$count" = 0 ]
