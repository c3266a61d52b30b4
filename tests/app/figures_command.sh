#!/usr/bin/env bash
# figures_command.sh FOURFOLD FOURFOLD_FAULTS LAUNCHER: what a run says about itself. P64: model FLOPs count a token's own experts and heads.
# P65: tokens/s count each token once and this session's steps alone. P66: memory is as it was reckoned. P67: the slow rank is named.
set -u
fourfold=$1 faults=$2 launcher=$3
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() {
  echo "FAILED: $*"
  tail -n 30 "$work/log"
  failures=$((failures + 1))
}
options=()
if "$launcher" --version 2>&1 | grep -q "Open MPI\|OpenRTE"; then options=(-q --oversubscribe --bind-to none); fi
program=$fourfold
launch() { # N ARGUMENTS...: from $work, output in $work/log
  local n=$1
  shift
  (cd "$work" && exec timeout 200 "$launcher" "${options[@]+"${options[@]}"}" -n "$n" "$program" "$@" > log 2>&1 < /dev/null)
}
cat > "$work/moe.yaml" << 'DECK'
run:        {name: moe, folder: moe, steps: 8, seed: 3}
model:      {kind: transformer, layers: 2, hidden: 64, heads: 4, kv_heads: 2, head_dim: 16, vocab: 1000, sequence: 128, tie_embeddings: true,
             positions: rope, norm: rms, ffn: {kind: swiglu, hidden: 128}, moe: {every: 1, experts: 8, top_k: 2, hidden: 128}}
data:       {kind: synthetic, synthetic: dyadic, samples: 96, valid_samples: 8}
batch:      {global: 8}
optimizer:  {kind: adamw, lr: 1.0e-3}
eval:       {every: 3, samples: 8}
checkpoint: {every: 3}
DECK

# P64: the pain's case, 1,225,728 FLOPs a token with causal attention: by check, and by what a run writes.
(cd "$work" && "$fourfold" check moe.yaml --ranks 2 > log 2>&1) || fail "P64: check"
grep -q '^# model FLOPs per token: 1,225,728' "$work/log" || fail "P64: check has another number"
grep -qi 'causal' "$work/log" || fail "P64: check does not say how attention counts"

# P65, P66 on several grids: a session of 5 steps that is stopped, and one of the other 3.
for grid in "1" "2 parallel.dense.data=2 parallel.moe.expert=2" "4 parallel.dense.row=2 parallel.dense.depth=2 parallel.moe.expert=4" \
  "4 parallel.dense.col=2 parallel.stages=2 batch.micro=4"; do
  read -r -a words <<< "$grid"
  rm -rf "$work/moe"
  launch "${words[0]}" train moe.yaml "${words[@]:1}" --stop-at-step 5
  [ $? = 75 ] || fail "$grid: the first session"
  launch "${words[0]}" train moe.yaml "${words[@]:1}" || fail "$grid: the second session"
  (cd "$work" && "$fourfold" check moe.yaml "${words[@]:1}" --ranks "${words[0]}" > check.log 2>&1) || fail "$grid: check"
  python3 - "$work" "$grid" << 'PYTHON' || fail "$grid: see above"
import json, re, sys
work, grid = sys.argv[1:]
log, check = open(work + "/log").read(), open(work + "/check.log").read()
lines = [json.loads(line) for line in open(work + "/moe/metrics.jsonl")]
steps = {line["step"]: line for line in lines if "loss" in line and "event" not in line}
bad = 0
def expect(what, got, wanted, tolerance=1e-9):
    global bad
    if got is None or abs(got - wanted) > tolerance * abs(wanted):
        print(f"{grid}: {what}: {got}, wanted {wanted}"); bad = 1
for step, line in steps.items():
    expect(f"P65, tokens of step {step}", line["tokens"], 8 * 128)
    expect(f"P65, tokens/s of step {step}", line["tokens_per_second"], line["tokens"] / line["seconds"])
    expect(f"P64, FLOP/s of step {step}", line["model_flops_per_second"], 1225728 * line["tokens"] / line["seconds"])
flops = [line for line in lines if line.get("event") == "flops"][-1]
expect("P64, FLOPs a token", flops["model_per_token"], 1225728)
# The second session has steps 6 to 8, and counts the third of them alone: neither its first two, nor evaluation and saves, nor the first session.
said = re.search(r"([\d,]+) tokens/s, .* in this session, its first 2 steps, evaluation and checkpoints not counted", log)
expect("P65, tokens/s of the session", said and float(said.group(1).replace(",", "")), 8 * 128 / steps[8]["seconds"], 1e-3)
def sizes(text):
    return {name: float(number) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[unit]
            for name, number, unit in re.findall(r"(parameters|gradients|optimizer|activations) ([\d.]+) ?([kMG]?)B", text)}
peak = sizes(re.search("peak memory of a rank:(.*)", log).group(1))
reckoned = sizes(re.search("reckoned before:(.*)", log).group(1))
for tag in ("parameters", "gradients", "optimizer"):
    exact = re.search(rf"# +{tag}: +([\d,]+) B", check)
    expect(f"P66, {tag} reckoned by check and by the run", exact and float(exact.group(1).replace(",", "")), reckoned[tag], 6e-3)
    expect(f"P66, {tag}", peak.get(tag), reckoned[tag])
expect("P66, activations", peak.get("activations"), reckoned["activations"], 0.12)
sys.exit(bad)
PYTHON
done

# P66: no room for the activations: what was foretold, the peak, and the largest items first.
(
  ulimit -v 2000000
  launch 2 train moe.yaml model.vocab=200000 batch.global=64 data.samples=960 run.folder=full
)
[ $? = 1 ] || fail "P66: not exit code 1 without memory"
amount='[0-9.]+ [kMG]B'
grep -Eq "^rank [01] on .*: out of memory: $amount for activations were refused\. Held: [a-z]+ $amount, [a-z]+ $amount.*; the peak was $amount\. Foretold: activations $amount, .*together $amount" \
  "$work/log" || fail "P66: the message lacks estimate, peak or the largest items"

# P67: rank 3 sleeps 100 ms in each step: its own time, and the others' waiting.
program=$faults
rm -rf "$work/moe"
FOURFOLD_FAULT="sleep rank=3 step=1 last=1000 phase=backward seconds=0.1" launch 4 train moe.yaml eval.every=0 run.ranks_every=3 || fail "P67: exit code $?"
grep -q "a rank computes .* rank 3 on $(uname -n) longest) and waits for others " "$work/log" || fail "P67: rank 3 is not named"
python3 - "$work" << 'PYTHON' || fail "P67: see above"
import json, sys
line = [json.loads(line) for line in open(sys.argv[1] + "/moe/metrics.jsonl")]
lines = [entry for entry in line if entry.get("event") == "ranks"]  # every three steps, and at the end
good = [entry["step"] for entry in lines] == [3, 6, 8]
for line in lines:
    good &= line["slowest"] == 3 and line["computing_largest"] - line["computing_median"] > 0.07 and line["waiting_median"] > 0.07
    print(line)
sys.exit(0 if good else 1)
PYTHON

echo "$failures failures"
[ "$failures" = 0 ]
