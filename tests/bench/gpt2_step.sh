#!/usr/bin/env bash
# Speed of a whole training step of gpt2_124m.yaml on this machine's cores, one rank a core, layout by layout; beside
# PyTorch where $PYTHON (python3) has it. Not a test: run it on an idle machine.
#
#   bash tests/bench/gpt2_step.sh [fp32|bf16] [FOURFOLD]     FOURFOLD: the program, build/app/fourfold without it
#
# A line a layout: median, lowest and highest tokens/s of the steps but the first two; the share of the ceiling that the
# run measured itself (6 x parameters of its matrices x tokens/s over the rate of its own products); seconds from the
# program's start to its first step. Then ratios: two ranks to one, the best layout to the best of PyTorch's settings.
set -uo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
precision=fp32
case ${1:-} in fp32 | bf16) precision=$1 && shift ;; esac
program=${1:-$here/../../build/app/fourfold}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
read -r -a launcher <<< "${MPIEXEC:-mpirun}"
matrices=123568128 # 12 layers x 12 x 768^2 + 50304 x 768

declare -A median # by name, of tokens/s
spread() { sort -n | awk '{ v[NR] = $1 } END { if (NR) printf "%8.1f %8.1f %8.1f", v[int((NR + 1) / 2)], v[1], v[NR] }'; }

run() {
  local name=$1 ranks=$2
  shift 2
  local run=$folder/$name
  if ! "${launcher[@]}" -n "$ranks" "$program" train "$here/gpt2_124m.yaml" --calibrate \
    run.folder="$run" precision.compute=$precision "$@" > "$run.log" 2>&1; then
    echo "$name failed:"
    tail -n 5 "$run.log"
    return 1
  fi
  local speeds ceiling start
  speeds=$(grep -o '"tokens_per_second":[0-9.]*' "$run/metrics.jsonl" | cut -d: -f2 | tail -n +3 | spread)
  median[$name]=$(awk '{ print $1 }' <<< "$speeds")
  ceiling=$(sed -n 's/.*ceiling: \([0-9.]*\) \([MGT]\)FLOP.*/\1 \2/p' "$run.log" | head -n 1)
  start=$(sed -n 's/^start *\([0-9.]*\)s.*/\1/p' "$run.log")
  awk -v name="$name" -v speeds="$speeds" -v ceiling="$ceiling" -v start="$start" -v matrices=$matrices 'BEGIN {
    split(ceiling, c, " "); unit["M"] = 1e6; unit["G"] = 1e9; unit["T"] = 1e12
    split(speeds, s, " ")
    printf "%-26s %s   %5.2f of %.4g GFLOP/s   start %s s\n", name, speeds, 6 * matrices * s[1] / (c[1] * unit[c[2]]),
           c[1] * unit[c[2]] * 1e-9, start }'
}

printf '%-26s %8s %8s %8s   share of the ceiling\n' layout 'median' 'lowest' 'highest'
run one_rank 1
if [ "$(nproc)" -ge 2 ]; then
  run data_2 2 parallel.dense.data=2
  run data_2_sharded 2 parallel.dense.data=2 optimizer.shard=data
  run row_2 2 parallel.dense.row=2
  run col_2 2 parallel.dense.col=2
  run depth_2 2 parallel.dense.depth=2
fi
if grep -q OpenMPInternal "$program"; then # a Kokkos with OpenMP: one rank on all cores, unbound
  if "${launcher[@]}" --version 2>&1 | grep -qE 'Open MPI|OpenRTE'; then launcher+=(--bind-to none); fi
  OMP_PROC_BIND=false OMP_NUM_THREADS=$(nproc) run "one_rank_$(nproc)_threads" 1
fi
python=${PYTHON:-python3}
if "$python" -c 'import torch' 2> /dev/null; then
  settings=(fp32)
  if [ $precision = bf16 ]; then settings=(autocast bf16); fi
  for setting in "${settings[@]}"; do
    for threads in 1 $(nproc); do
      name=pytorch_${setting}_${threads}_threads
      speeds=$("$python" "$here/gpt2_torch.py" --threads "$threads" --precision "$setting" | spread)
      median[$name]=$(awk '{ print $1 }' <<< "$speeds")
      printf '%-26s %s\n' "$name" "$speeds"
    done
  done
else
  echo "PyTorch: not installed (Debian: python3-torch)"
fi

# The fastest of the names that match.
best() {
  local name
  for name in "${!median[@]}"; do
    if [[ $name =~ $1 ]]; then echo "${median[$name]} $name"; fi
  done | sort -n | tail -n 1
}
ratio() { awk -v a="${1% *}" -v b="${2% *}" -v text="$3" 'BEGIN { if (a > 0 && b > 0) printf "%.2f  %s\n", a / b, text }'; }
echo
for layout in data_2 data_2_sharded row_2 col_2 depth_2; do
  ratio "${median[$layout]:-0}" "${median[one_rank]:-0}" "$layout to one_rank"
done
mine=$(best '^(one_rank|data|row|col|depth)') theirs=$(best '^pytorch')
ratio "$mine" "$theirs" "${mine#* } to ${theirs#* }"
