#!/usr/bin/env bash
# Speed of a training step with experts beside a dense step of the same active FLOPs (moe_step.yaml), on one rank and two.
# Not a test: run it on an idle machine.
#
#   bash tests/bench/moe_step.sh [fp32|bf16] [FOURFOLD]     FOURFOLD: the program, build/app/fourfold without it
#
#   eight   8 experts of 1024, 2 a token      beside a feed-forward of 2048
#   fine    64 experts of 256, 6 a token      beside a feed-forward of 1536
#
# A line a model and dispatcher: median, lowest and highest tokens/s of the steps but the first, over ROUNDS (2) runs in
# turn, and the share of the dense model's median. Aim: 0.8, and no dispatcher 5 % better than the one that is the
# default. The routing is forced to be even (model.moe.forced), as a trained router's is; ROUTING=none lets it be.
set -uo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
precision=fp32
case ${1:-} in fp32 | bf16) precision=$1 && shift ;; esac
program=${1:-$here/../../build/app/fourfold}
rounds=${ROUNDS:-2}
routing=${ROUTING:-uniform}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
read -r -a launcher <<< "${MPIEXEC:-mpirun}"

# NAME RANKS KEY=VALUE...: one run more of this name.
run() {
  local name=$1 ranks=$2
  shift 2
  rm -rf "$folder/run"
  if ! "${launcher[@]}" -n "$ranks" "$program" train "$here/moe_step.yaml" run.folder="$folder/run" \
    precision.compute=$precision ${STEPS:+run.steps=$STEPS} "$@" > "$folder/log" 2>&1; then
    echo "$name failed:"
    tail -n 5 "$folder/log"
    exit 1
  fi
  grep -o '"tokens_per_second":[0-9.]*' "$folder/run/metrics.jsonl" | cut -d: -f2 | tail -n +2 >> "$folder/$name"
}
median() { sort -n "$folder/$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
line() { # NAME DENSE
  sort -n "$folder/$1" | awk -v name="$1" -v dense="$(median "$2")" '{ v[NR] = $1 } END {
    m = v[int((NR + 1) / 2)]
    printf "%-28s %9.1f %9.1f %9.1f   %.3f\n", name, m, v[1], v[NR], m / dense }'
}

printf '%-28s %9s %9s %9s   of dense\n' "$precision" median lowest highest
for ranks in 1 2; do
  [ "$ranks" -gt "$(getconf _NPROCESSORS_ONLN)" ] && continue
  for model in eight fine; do
    case $model in
      eight) width=2048 moe="{experts: 8, top_k: 2, hidden: 1024, forced: {routing: $routing}}" ;;
      fine) width=1536 moe="{experts: 64, top_k: 6, hidden: 256, forced: {routing: $routing}}" ;;
    esac
    grid=(parallel.dense.data="$ranks")
    names=(alltoall)
    [ "$ranks" -gt 1 ] && names=(alltoall allgather hierarchical)
    for _ in $(seq "$rounds"); do
      run "${model}_dense_$ranks" "$ranks" model.ffn.hidden=$width "${grid[@]}"
      for dispatcher in "${names[@]}"; do
        run "${model}_${dispatcher}_$ranks" "$ranks" "model.moe=$moe" model.moe.dispatcher="$dispatcher" \
          parallel.moe.expert="$ranks" "${grid[@]}"
      done
    done
    line "${model}_dense_$ranks" "${model}_dense_$ranks"
    for dispatcher in "${names[@]}"; do line "${model}_${dispatcher}_$ranks" "${model}_dense_$ranks"; done
  done
done
