# Sourced by train_command.sh: a small run on text, and helpers around it.
# Wants $fourfold and $launcher; makes $work, the folder all runs are in.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
ranks=3
options=()
if "$launcher" --version 2>&1 | grep -q "Open MPI\|OpenRTE"; then options=(-q --oversubscribe --bind-to none); fi

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

for i in $(seq 1 3000); do echo "line $i of a text in which $((i * 7 % 13)) follows $((i % 10))"; done >"$work/text.txt"
cat >"$work/small.yaml" <<DECK
run:        {name: small, folder: run, steps: 40, seed: 11}
model:      {kind: transformer, layers: 2, hidden: 48, heads: 3, kv_heads: 1, head_dim: 16, vocab: 257, sequence: 32,
             positions: rope, norm: rms, ffn: {kind: swiglu, hidden: 96}, dropout: 0.1}
data:       {train: [text.txt], valid_fraction: 0.05}
batch:      {global: 24, micro_batches: 2}
optimizer:  {kind: adamw, lr: 3.0e-3, weight_decay: 0.1, clip: 1.0, schedule: {kind: cosine, warmup: 5, final: 3.0e-4}}
precision:  {compute: fp32}
numerics:   {deterministic: true}
eval:       {every: 7, samples: 60}
checkpoint: {every: 4, keep: 3}
DECK

# launch N ARGUMENTS...: the program on N ranks, from $work, output in $work/log.
launch() {
  local n=$1
  shift
  (cd "$work" && exec "$launcher" "${options[@]+"${options[@]}"}" -n "$n" "$fourfold" "$@" >>log 2>&1 </dev/null)
}

# start ARGUMENTS...: the same in the background on $ranks ranks; its process id in $job.
start() {
  (cd "$work" && exec "$launcher" "${options[@]+"${options[@]}"}" -n "$ranks" "$fourfold" "$@" >>log 2>&1 </dev/null) &
  job=$!
}

# rank_process INDEX: the process id of one of $job's ranks, once it runs.
rank_process() {
  local found stat field parent
  for _ in $(seq 1 200); do
    found=()
    for stat in /proc/[0-9]*/stat; do
      # pid (name) state parent ...
      read -r -a field 2>/dev/null <"$stat" || continue
      [ "${field[1]}" = "(fourfold)" ] || continue
      parent=${field[3]}
      # Of the launcher itself (Open MPI), or of a process of its own for the node (MPICH).
      if [ "$parent" != "$job" ]; then read -r _ _ _ parent _ 2>/dev/null <"/proc/$parent/stat" || continue; fi
      [ "$parent" = "$job" ] && found+=("${field[0]}")
    done
    if [ "${#found[@]}" -gt "$1" ]; then
      echo "${found[$1]}"
      return
    fi
    kill -0 "$job" 2>/dev/null || return
    sleep 0.05
  done
}

seconds_now() { date +%s.%N; }
# between LOW HIGH: a random number of seconds.
between() { awk -v r="$RANDOM" -v low="$1" -v high="$2" 'BEGIN {printf "%.3f", low + (high - low) * r / 32768}'; }
times() { awk -v a="$1" -v b="$2" 'BEGIN {printf "%.3f", a * b}'; }

# unbroken_run: trains to the end, leaves the final checkpoint in $work/unbroken.h5 and the seconds it took in $whole.
final=run/checkpoints/step_00000040.h5
unbroken_run() {
  local begin
  begin=$(seconds_now)
  launch "$ranks" train small.yaml || fail "the unbroken run: exit code $?: $(tail -5 "$work/log")"
  whole=$(awk -v a="$begin" -v b="$(seconds_now)" 'BEGIN {printf "%.3f", b - a}')
  cp "$work/$final" "$work/unbroken.h5"
  cp "$work/run/metrics.jsonl" "$work/unbroken.jsonl"
}

# same_end WHAT: the run's final weights, moments and state are those of the unbroken run, byte for byte, and no
# evaluation is missing.
same_end() {
  cmp "$work/$final" "$work/unbroken.h5" || fail "$1: the final checkpoint differs"
  local step
  for step in 7 14 21 28 35 40; do
    grep -q "\"event\":\"eval\",\"step\":$step," "$work/run/metrics.jsonl" || fail "$1: no evaluation of step $step"
  done
}
