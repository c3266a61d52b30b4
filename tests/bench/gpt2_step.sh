#!/usr/bin/env bash
# Speed of a whole training step of gpt2_124m.yaml on this machine's cores, one rank a core, layout by layout; beside
# PyTorch where $PYTHON (python3) has it. Not a test: run it on an idle machine.
#
#   bash tests/bench/gpt2_step.sh [FOURFOLD]     FOURFOLD: the program, build/app/fourfold without it
#
# A line a layout: median, lowest and highest tokens/s of the steps but the first two; the share of the ceiling that the
# run measured itself (6 x parameters of its matrices x tokens/s over the rate of its own products); seconds from the
# program's start to its first step.
set -uo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
program=${1:-$here/../../build/app/fourfold}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
read -r -a launcher <<< "${MPIEXEC:-mpirun}"
matrices=123568128 # 12 layers x 12 x 768^2 + 50304 x 768

spread() { sort -n | awk '{ v[NR] = $1 } END { if (NR) printf "%8.1f %8.1f %8.1f", v[int((NR + 1) / 2)], v[1], v[NR] }'; }

run() {
  local name=$1 ranks=$2
  shift 2
  local run=$folder/$name
  if ! "${launcher[@]}" -n "$ranks" "$program" train "$here/gpt2_124m.yaml" run.folder="$run" "$@" > "$run.log" 2>&1; then
    echo "$name failed:"
    tail -n 5 "$run.log"
    return 1
  fi
  local speeds ceiling start
  speeds=$(grep -o '"tokens_per_second":[0-9.]*' "$run/metrics.jsonl" | cut -d: -f2 | tail -n +3 | spread)
  ceiling=$(sed -n 's/.*ceiling \([0-9.]*\) \([MGT]\)FLOP.*/\1 \2/p' "$run.log" | head -n 1)
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
  for threads in 1 $(nproc); do
    printf '%-26s %s\n' "pytorch_${threads}_threads" "$("$python" "$here/gpt2_torch.py" --threads "$threads" | spread)"
  done
else
  echo "PyTorch: not installed (Debian: python3-torch)"
fi
