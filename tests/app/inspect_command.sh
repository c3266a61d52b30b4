#!/bin/bash
# fourfold inspect: inspect_command.sh FOURFOLD LAUNCHER... (the launcher without the rank count): runs on two grids agree
# on all recorded steps, runs of two seeds part at step 1, damage is named, and each has its exit code.
set -u
fourfold=$1
shift
launcher=("$@")
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

fail() {
  echo "FAILED: $*"
  cat out
  exit 1
}
# expect CODE PATTERN COMMAND...
expect() {
  local code=$1 pattern=$2
  shift 2
  "$@" > out 2>&1
  local status=$?
  [ $status -eq "$code" ] || fail "status $status instead of $code: $*"
  grep -qE -- "$pattern" out || fail "no line like '$pattern': $*"
}

cat > deck.yaml << 'END'
run: {name: inspect, steps: 3, seed: 5}
model: {kind: transformer, layers: 1, hidden: 12, heads: 4, kv_heads: 2, head_dim: 4, vocab: 31, sequence: 8, ffn: {hidden: 20}}
data: {kind: synthetic, samples: 100}
batch: {global: 8}
optimizer: {kind: momentum, lr: 1.0e-2}
precision: {compute: fp64}
debug: {record: 1, replica_check: 1}
checkpoint: {every: 2}
END
expect 0 "" "${launcher[@]}" 1 "$fourfold" train deck.yaml run.folder=one
expect 0 "" "${launcher[@]}" 4 "$fourfold" train deck.yaml run.folder=four parallel.dense.row=2 parallel.dense.depth=2
expect 0 "" "${launcher[@]}" 1 "$fourfold" train deck.yaml run.folder=seed run.seed=6

expect 0 "^one/record: 3 committed steps" "$fourfold" inspect one
expect 0 "^ +2 .* inspect$" "$fourfold" inspect one/checkpoints
expect 0 "all bytes read" "$fourfold" inspect one --verify
expect 0 "^equal within 1.0e-11 on all 3 common steps" "$fourfold" inspect one --compare four
expect 1 "^the runs part at step 1: " "$fourfold" inspect one --compare seed
expect 1 "^  /gradients/" "$fourfold" inspect one --compare seed
expect 1 "^the runs part at step" "$fourfold" inspect one --compare four --tolerance 0
expect 0 "^equal within 0.0e\+00" "$fourfold" inspect one --compare one --tolerance 0
expect 0 "^equal within 1.0e\+03" "$fourfold" inspect one --compare seed --tolerance 1000
expect 2 "is neither the folder of a run nor one of checkpoints" "$fourfold" inspect nowhere
expect 2 "PATH is required" "$fourfold" inspect
expect 2 "is neither the folder of a run nor one of checkpoints" "$fourfold" inspect /etc
expect 2 "--verify excludes --compare" "$fourfold" inspect one --compare four --verify
expect 2 "--tolerance: nan is not legal; wanted: a number, 0 or more" "$fourfold" inspect one --compare four --tolerance nan
expect 2 "--temperature: nan is not legal" "$fourfold" generate deck.yaml --temperature nan
expect 2 "is neither the folder of a run nor one of checkpoints" "$fourfold" inspect one --compare ""
ln -s loop1 loop2 && ln -s loop2 loop1
expect 2 "loop1 is neither the folder of a run" "$fourfold" inspect loop1
mkdir empty
expect 0 "^empty: 0 committed steps" "$fourfold" inspect empty
expect 0 "" "${launcher[@]}" 1 "$fourfold" train deck.yaml run.folder=single precision.compute=fp32
expect 2 "is fp64 in .* and fp32 in " "$fourfold" inspect one --compare single
# bf16 on two grids: rounding, by its own bound; another seed is beyond it.
expect 0 "" "${launcher[@]}" 1 "$fourfold" train deck.yaml run.folder=half precision.compute=bf16
expect 0 "" "${launcher[@]}" 4 "$fourfold" train deck.yaml run.folder=halves precision.compute=bf16 parallel.dense.row=2 parallel.dense.depth=2
expect 0 "" "${launcher[@]}" 1 "$fourfold" train deck.yaml run.folder=half_seed precision.compute=bf16 run.seed=6
expect 0 "^equal within 3.1e-02 on all 3 common steps" "$fourfold" inspect half --compare halves
expect 1 "^the runs part at step 1: " "$fourfold" inspect half --compare half_seed
expect 0 "all bytes read" "$fourfold" inspect half --verify
expect 2 "in another precision: its weights are bf16, the model's .precision.compute. are fp64" "${launcher[@]}" 1 "$fourfold" eval deck.yaml run.folder=half data.valid_samples=4

# Files: the tensors of one, two of any steps, two of different models.
last=checkpoints/step_00000003.h5
expect 0 "^/params/head.weight +fp64 +31 x 12 " "$fourfold" inspect one/$last
expect 0 "^/params/head.weight +fp64 +31 x 12 +largest [1-9]" "$fourfold" inspect one/$last --verify
expect 0 "^0 values are not finite, 0 are denormal" "$fourfold" inspect one/$last --verify
expect 0 " 0 beyond 0.0e.00; 0 in one alone" "$fourfold" inspect one/$last --compare one/$last
expect 1 "^/params/head.weight +[1-9]" "$fourfold" inspect one/$last --compare one/checkpoints/step_00000002.h5
expect 0 "^equal within" "$fourfold" inspect one --compare four
expect 0 " 0 beyond 1.0e-11; 0 in" "$fourfold" inspect one/$last --compare four/$last --tolerance 1e-11
expect 0 "" "${launcher[@]}" 1 "$fourfold" train deck.yaml run.folder=wide model.ffn.hidden=24 model.tie_embeddings=true
expect 1 "^only in the first: /params/head.weight .fp64 31 x 12." "$fourfold" inspect one/$last --compare wide/$last
expect 1 "^/params/layers.0.ffn.up.weight is fp64 20 x 12 in the first, fp64 24 x 12 in the second" "$fourfold" inspect one/$last --compare wide/$last

# Read while a run writes (P20): never an error.
"${launcher[@]}" 2 "$fourfold" train deck.yaml run.folder=busy run.steps=60 debug.record=0 checkpoint.every=1 checkpoint.keep=2 > busy.log 2>&1 &
job=$!
looks=0
while kill -0 $job 2> /dev/null; do
  [ -d busy/checkpoints ] && expect 0 "committed steps" "$fourfold" inspect busy/checkpoints && looks=$((looks + 1))
  sleep 0.05
done
wait $job || { cp busy.log out; fail "the run that was looked at"; }
[ $looks -gt 3 ] || fail "only $looks looks at a run that writes"
cp -r busy/checkpoints interrupted && rm interrupted/step_00000060.commit
expect 0 "^ +60  not committed" "$fourfold" inspect interrupted

# A flipped byte in the middle of a tensor's data.
file=one/checkpoints/step_00000002.h5
offset=$(grep -oE '"offset": *[0-9]+' one/checkpoints/step_00000002.commit | head -1 | grep -oE '[0-9]+')
printf '\377' | dd of="$file" bs=1 seek=$((offset + 40)) conv=notrunc status=none
expect 4 "the checksum of elements 0 to" "$fourfold" inspect one --verify
expect 0 "^equal" "$fourfold" inspect four --compare four
truncate -s 3000 four/checkpoints/step_00000003.h5
expect 4 "four/checkpoints/step_00000003.h5: the file has 3000 bytes" "$fourfold" inspect four
echo ok
