#!/usr/bin/env bash
# check_command.sh FOURFOLD INPUTS LAUNCHER: what `fourfold check` prints, and how the command line fails.
set -u
fourfold=$1 inputs=$2 launcher=$3
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# expect CODE PATTERN COMMAND...: the exit code, and a line of the output (both streams) that matches.
expect() {
  local code=$1 pattern=$2
  shift 2
  "$@" >"$work/out" 2>"$work/err" </dev/null
  local got=$?
  [ $got = "$code" ] || fail "exit code $got, wanted $code: $*"
  cat "$work/out" "$work/err" | grep -Eq -- "$pattern" || fail "no line like '$pattern': $*: $(cat "$work/out" "$work/err")"
}

quickstart=$inputs/quickstart.yaml
expect 0 '^# grid: 4 ranks = stages 1 x \(data 4 x' "$fourfold" check "$quickstart" --ranks 4
grep -v 'warning: data.train: corpus/corpus.txt' "$work/err" && fail "check writes to stderr"
# The whole output is a deck, and reads as itself.
cp "$work/out" "$work/resolved.yaml"
expect 0 '^# checkpoint: ' "$fourfold" check "$work/resolved.yaml" --ranks 4
cmp -s "$work/out" "$work/resolved.yaml" || fail "the resolved deck does not resolve to itself"
# A file of data that is not here is said, whatever else is right.
expect 0 'warning: data.train: nowhere.txt: no such file here' "$fourfold" check "$quickstart" 'data.train=[nowhere.txt]'
expect 0 'warning: data.valid: no/\*.bin: no file matches here' "$fourfold" check "$quickstart" 'data.valid=[no/*.bin]' data.valid_fraction=0
expect 0 'warning: model.init.from: step_7.h5: no such file' "$fourfold" check "$quickstart" model.init.from=step_7.h5
: >"$work/there.txt"
expect 0 '^# grid' "$fourfold" check "$quickstart" "data.train=[$work/there.txt]"
[ ! -s "$work/err" ] || fail "a warning of a file that is there: $(cat "$work/err")"
for figure in '^# parameters: [0-9,]+' '^# model FLOPs per token: [0-9,]+' '^# memory per rank: ' '^# checkpoint: '; do
  expect 0 "$figure" "$fourfold" check "$quickstart"
done
expect 0 '^  lr: 0?\.?[0-9.e-]+$' "$fourfold" check "$quickstart" optimizer.lr=1e-2
expect 0 '^  steps: 70$' "$fourfold" check "$quickstart" run.steps=70
for deck in "$inputs"/*.yaml; do
  expect 0 '^# parameters: ' "$fourfold" check "$deck"
  cp "$work/out" "$work/resolved.yaml" # of every kind of model
  expect 0 '^# parameters: ' "$fourfold" check "$work/resolved.yaml"
  cmp -s "$work/out" "$work/resolved.yaml" || fail "$deck: the resolved deck does not resolve to itself"
done

# Hosts: a machine file's nodes, or those of the allocation around it; many ranks are shortened.
two_level=emulate.machine=$inputs/machines/two_level.yaml
expect 0 '^# +4 +0 .* \| two_level node 1$' "$fourfold" check "$quickstart" --ranks 8 "$two_level"
expect 0 '^# +5 +0 .* \| nid008$' env SLURM_JOB_NODELIST='nid[007-008]' SLURM_TASKS_PER_NODE='4(x2)' \
  "$fourfold" check "$quickstart" --ranks 8
expect 0 'ranks left out$' "$fourfold" check "$quickstart" batch.global=100 --ranks 100
expect 0 '^# +50 +0 ' "$fourfold" check "$quickstart" batch.global=100 --ranks 100 --all-ranks
expect 2 'two_level has 16 nodes x 4 ranks = 64, but the job has 128' "$fourfold" check "$quickstart" batch.global=128 \
  --ranks 128 "$two_level"

# Pipelines, drawn as text and as SVG; the whole output stays a deck.
pipeline=(parallel.stages=4 batch.micro_batches=8 'emulate.stage_times=[1000000,1000000,1000000]')
expect 0 '^# schedule 1f1b: 4 stages, 4 chunks, 8 micro-batches$' "$fourfold" check "$quickstart" --schedule "${pipeline[@]}"
grep -q '^# stage 0 |F0F1F2F3  .* idle 27.3 %, 4 in flight$' "$work/out" || fail "the timeline is not as reckoned: $(cat "$work/out")"
grep -q '^# time .* 33 us   idle 27.3 % of all$' "$work/out" || fail "the makespan is not (8 + 4 - 1) x 3 us"
grep -q '^#   chunk 3 on stage 3: layers.3 to head; ' "$work/out" || fail "the head is not in the last chunk"
expect 0 'layers.0 to layers.1; ' "$fourfold" check "$quickstart" --schedule "${pipeline[@]}" parallel.cuts=[1,2,2,1]
expect 0 ' 27 us   idle 11.1 % of all$' "$fourfold" check "$quickstart" --schedule --schedule-svg "$work/timeline.svg" \
  "${pipeline[@]}" parallel.schedule=zero_bubble
[ "$(grep -c '<title>' "$work/timeline.svg")" = 96 ] || fail "not 4 stages x 8 micro-batches x 3 operations in the SVG"
expect 0 ' GFLOP   idle ' "$fourfold" check "$quickstart" --schedule parallel.stages=2 parallel.schedule=layered
expect 0 '^# legend  F forward --, I input gradients ~~, W weight gradients \+\+;' "$fourfold" check "$quickstart" --schedule \
  "${pipeline[@]}" parallel.schedule=zero_bubble
# A stage of four ranks gets four times the work of a stage of one; each is as busy.
expect 0 'chunk 0 on stage 0: embedding to layers.6; 86.4 % of the FLOPs' "$fourfold" check "$quickstart" --schedule model.layers=8 \
  batch.micro_batches=4 'parallel.stage_grids=[{data: 4}, {data: 1}]'
expect 0 'chunk 0 on stage 0: embedding to layers.0; ' "$fourfold" check "$quickstart" --schedule model.layers=8 \
  batch.micro_batches=4 'parallel.stage_grids=[{data: 1}, {row: 2, col: 2}]'
# Stages 1 and 2 are on two nodes, 1 us apart: geo pays one round trip.
printf '%s\n' 'name: two' 'nodes: 2' 'ranks_per_node: 2' 'links: {inside: {latency: 0, bandwidth: 1.0e9}, between: {latency: 1.0e-6, bandwidth: 1.0e9}}' \
  'rank: {fp64: 1.0e12, fp32: 1.0e12, bf16: 1.0e12, memory_bandwidth: 1.0e12}' >"$work/two.yaml"
expect 0 ' 35 us   idle ' "$fourfold" check "$quickstart" --schedule "${pipeline[@]}" parallel.schedule=geo \
  parallel.extra_in_flight=[0,1,0] emulate.machine="$work/two.yaml"
expect 4 'cannot make /nowhere/timeline.svg.tmp: No such file or directory' "$fourfold" check "$quickstart" --schedule-svg /nowhere/timeline.svg
expect 2 'batch.micro: gives 8000000 micro-batches x 1 chunk are more than' "$fourfold" check "$quickstart" --ranks 1 batch.global=8000000 batch.micro=1
expect 2 'chunks x micro-batches is more than' "$fourfold" check "$quickstart" --schedule batch.global=8000000 batch.micro=1
# What is kept and what runs again.
expect 0 'stage 0: keeps embedding, head; recomputes attention and keeps the rest of layers.0 to layers.3; ' "$fourfold" check \
  "$quickstart" parallel.activations.sublayers=[attention]
expect 0 'recomputes layers.0; offloads head; recomputes ffn and offloads the rest of layers.1 to layers.3; ' "$fourfold" check \
  "$quickstart" parallel.activations='{default: offload, recompute: ["0"], offload: [head], sublayers: [ffn]}'
expect 2 'parallel.schedule_list: stage 1, entry 2 .X0.: wanted F, B, I or W' "$fourfold" check "$quickstart" \
  parallel.stages=2 batch.micro_batches=1 parallel.schedule=list 'parallel.schedule_list=[F0 B0, F0 X0]'

# Stages with grids of their own: where each rank is, what crosses, and the latency of the slowest link it crosses by.
widths=('parallel.stage_grids=[{row: 3}, {data: 3}, {row: 2}]')
expect 0 '^# grid: 8 ranks in 3 stages with grids of their own$' "$fourfold" check "$quickstart" --ranks 8 "${widths[@]}"
grep -q '^#   stage 1: 3 ranks = data 3 x depth 1 x row 1 x col 1; micro-batches of 16 cut into 3$' "$work/out" ||
  fail "no line of stage 1: $(cat "$work/out")"
# 16 sequences x 256 tokens x 192 columns x 4 bytes, once over data, three times over row.
grep -q '^# hand-off, stage 0 to 1: 3,145,728 B (3.0 MiB) of a micro-batch forwards, 9,437,184 B (9.0 MiB) back$' "$work/out" ||
  fail "the hand-off is not as reckoned: $(cat "$work/out")"
grep -Eq '^# +4 +1 \| +1 +0 +0 +0 \|' "$work/out" || fail "rank 4 is not the second of stage 1: $(cat "$work/out")"
cp "$work/out" "$work/resolved.yaml"
expect 0 '^# checkpoint: ' "$fourfold" check "$work/resolved.yaml" --ranks 8
cmp -s "$work/out" "$work/resolved.yaml" || fail "the resolved deck of unequal stages does not resolve to itself"
expect 0 ' 38 us   idle ' "$fourfold" check "$quickstart" --schedule 'parallel.stage_grids=[{data: 2}, {data: 1}, {}]' \
  batch.micro_batches=8 'emulate.stage_times=[1000000,1000000,1000000]' emulate.machine="$work/two.yaml"

"$fourfold" check --all-keys >"$work/all_keys.yaml"
cmp "$work/all_keys.yaml" "$inputs/all_keys.yaml" || fail "inputs/all_keys.yaml is not what the program writes"

# The command line.
expect 2 'a command is missing' "$fourfold"
expect 2 'unknown command chek; nearest: check; commands: check' "$fourfold" chek "$quickstart"
expect 2 'check wants a DECK' "$fourfold" check
expect 2 'cannot read the deck nowhere.yaml: No such file' "$fourfold" check nowhere.yaml
expect 2 'it is a folder' "$fourfold" check "$inputs"
expect 2 '--rnaks' "$fourfold" check "$quickstart" --rnaks 4
expect 2 '--ranks: 0 is not legal; wanted: an integer, 1 to 1073741824; nearest: 1' "$fourfold" check "$quickstart" --ranks 0
for option in '--top-p 2' '--top-p 0' '--top-p -1' '--temperature -1' '--temperature inf' '--top-k -1' '--top-k x'; do
  # shellcheck disable=SC2086 # two words
  expect 2 "${option%% *}: ${option##* } is not legal; wanted: " "$fourfold" generate "$quickstart" $option
done
expect 2 '--top-p: 2 is not legal; wanted: a number above 0, up to 1; nearest: 1' "$fourfold" generate "$quickstart" --top-p 2
expect 2 '--to: parquet is not legal; wanted: one of llmc, megatron, text' "$fourfold" convert data x.txt --to parquet --output x
expect 2 '--type: F8 is not legal; wanted: one of F32, BF16, F16, F64' "$fourfold" convert weights x --type F8 --output x
expect 2 "command line: steps: wanted: key.path=value" "$fourfold" check "$quickstart" steps
expect 0 'Usage: fourfold' "$fourfold" --help
expect 0 '^[0-9]+\.[0-9]+\.[0-9]+$' "$fourfold" --version

# One copy of everything under a launcher.
launch=("$launcher" -n 3)
if "$launcher" --version 2>&1 | grep -q "Open MPI\|OpenRTE"; then
  launch=("$launcher" -q --oversubscribe --bind-to none -n 3)
fi
expect 0 '^# checkpoint' "${launch[@]}" "$fourfold" check "$quickstart"
[ "$(grep -c '^# checkpoint' "$work/out")" = 1 ] || fail "more than one copy of check"
expect 2 'unknown command' "${launch[@]}" "$fourfold" chek
[ "$(wc -l <"$work/err")" = 1 ] || fail "more than one copy of the error: $(cat "$work/err")"

echo "check_command: $failures failures"
[ $failures = 0 ]
