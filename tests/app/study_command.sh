#!/usr/bin/env bash
# study_command.sh FOURFOLD FOURFOLD_FAULTS LAUNCHER: a study killed at random moments ends with the table of an unbroken one but for
# times; all strategies have the same losses, bit for bit on dyadic decks, and the memory of their formulas; failures are listed; a trial that
# hangs is ended by its watchdog; parts in files of their own are one study; stops; reports, whose every figure is a row's (P74).
set -u
fourfold=$1 faults=$2 launcher=$3
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
seed=${FOURFOLD_SEED:-$((20261201 % 32768))}
RANDOM=$seed
echo "seed $seed (FOURFOLD_SEED)"

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

options=()
if "$launcher" --version 2>&1 | grep -q "Open MPI\|OpenRTE"; then options=(-q --oversubscribe --bind-to none); fi

# launch N ARGUMENTS...: from $work, output in $work/log.
launch() {
  local n=$1
  shift
  (cd "$work" && exec "$launcher" "${options[@]+"${options[@]}"}" -n "$n" "${program:-$fourfold}" "$@" >>log 2>&1 </dev/null)
}

# Kinds of layout of one global batch; momentum, so that there is an optimizer's state. Psi = 2 x 6 x 32 x 64 = 24,576.
cat >"$work/study.yaml" <<'DECK'
study:      {name: s, folder: s, kind: strategies, ranks: [1, 2, 4], target_loss: 12,
             strategies: [ddp, zero1, fsdp, hsdp, megatron-1d, axonn-3d, gpipe, 1f1b, zero-bubble, ptd]}
run:        {steps: 12, seed: 7}
model:      {kind: residual, layers: 6, hidden: 32, ffn: {hidden: 64}, activation: relu, bias_terms: false,
             loss: squared_error, init: {kind: dyadic, nonzeros: 1}}
data:       {kind: synthetic, synthetic: dyadic, samples: 96, valid_samples: 24}
batch:      {global: 24}
optimizer:  {kind: momentum, lr: 0.5, clip: 1.0}
precision:  {compute: fp64}
numerics:   {deterministic: true, snap: 8}
DECK

# columns FOLDER: table.csv without what a clock measured, and without hosts.
columns() {
  python3 - "$work/$1" <<'PYTHON'
import csv, sys
rows = list(csv.reader(open(sys.argv[1] + "/table.csv")))
timing = lambda c: c in ("hosts", "utilisation") or c.startswith("step_seconds") or c.endswith(("_seconds", "_per_second"))
kept = [i for i, c in enumerate(rows[0]) if not timing(c)]
for row in rows:
    print(",".join(row[i] for i in kept))
PYTHON
}

# 1. Unbroken.
begin=$(date +%s.%N)
launch 4 study study.yaml || fail "the unbroken study: exit code $?: $(tail -5 "$work/log")"
whole=$(awk -v a="$begin" -v b="$(date +%s.%N)" 'BEGIN {printf "%.3f", b - a}')
launch 1 report s --no-plots || fail "report: exit code $?: $(tail -5 "$work/log")"
columns s >"$work/unbroken"
[ "$(wc -l <"$work/unbroken")" = 31 ] || fail "not 30 rows: $(cat "$work/unbroken")"

# 2. All strategies have the same losses, bit for bit, and the bytes of the formulas for momentum in fp64: 8 bytes each of
#    values, gradients, momentum a parameter, divided as each strategy says.
python3 - "$work/s" <<'PYTHON' || fail "losses or memory, see above"
import csv, json, sys
folder = sys.argv[1]
rows = list(csv.DictReader(open(folder + "/table.csv")))
losses, bad = {}, 0
for row in rows:
    lines = [json.loads(line) for line in open(f"{folder}/trials/{row['trial']}/metrics.jsonl")]
    losses[row["strategy"], row["ranks"]] = [line["loss"] for line in lines if "loss" in line and "event" not in line]
first = losses["ddp", "1"]
if len(set(first)) < 6:
    print("the losses do not move", first); bad = 1
for key, own in losses.items():
    if own != first:
        print("other losses", key, own, first); bad = 1
psi = 2 * 6 * 32 * 64
for row in rows:
    n = int(row["ranks"])
    whole = {"ddp", "zero1"}
    values = 8 * psi if row["strategy"] in whole else 8 * psi // n
    if row["strategy"] == "hsdp":  # data x depth as even as can be: at most halves here
        values = 8 * psi // min(n, 2)
    # Six blocks do not divide by four stages: the largest holds two of them.
    if row["strategy"] in ("gpipe", "1f1b", "zero-bubble") and n == 4:
        values = 8 * psi * 2 // 6
    optimizer = values // n if row["strategy"] == "zero1" else values
    # The sharded update's second copy of nothing: values and gradients stay whole.
    want = {"parameters": values, "gradients": values, "optimizer": optimizer}
    for tag, bytes in want.items():
        got = (int(row["memory_" + tag]), int(row["predicted_" + tag]))
        if got != (bytes, bytes):
            print(row["strategy"], n, tag, "measured, predicted", got, "formula", bytes); bad = 1
    if row["steps_to_target"] == "":
        print("no step reached the target", row["strategy"]); bad = 1
sys.exit(bad)
PYTHON

"$(command -v python3)" "$here/study_figures.py" "$work/s" || fail "P74: figures of the report that no row has"

# 2b. Experts over all ranks (expert-parallel) on a dyadic mixture: the same losses as ddp, bit for bit; a rank has its experts alone. psi of the
#     three dense blocks, of three mixtures' four experts, and of their routers. And Megatron's sequence parallelism on a transformer, to 1e-11.
sed -e 's/name: s, folder: s/name: m, folder: m/; s/strategies: \[.*\]/strategies: [ddp, expert-parallel]/' \
  -e 's/^model: *{/&moe: {every: 2, experts: 4, top_k: 1, hidden: 64}, /' "$work/study.yaml" >"$work/moe.yaml"
launch 4 study moe.yaml || fail "a mixture's strategies: exit code $?: $(tail -5 "$work/log")"
cat >"$work/sp.yaml" <<'DECK'
study:      {name: sp, folder: sp, kind: strategies, ranks: [1, 2, 4], strategies: [ddp, megatron-sp]}
run:        {steps: 6, seed: 7}
model:      {kind: transformer, layers: 2, hidden: 32, heads: 4, head_dim: 8, vocab: 40, sequence: 16}
data:       {kind: synthetic, synthetic: dyadic, samples: 96}
batch:      {global: 8}
optimizer:  {kind: adamw, lr: 1.0e-3}
precision:  {compute: fp64}
numerics:   {deterministic: true}
DECK
launch 4 study sp.yaml || fail "megatron-sp: exit code $?: $(tail -5 "$work/log")"
for study in m sp; do launch 1 report $study --no-plots || fail "report of $study: exit code $?"; done
python3 - "$work" <<'PYTHON' || fail "a mixture's or megatron-sp's losses or memory, see above"
import csv, json, sys
bad = 0
for study, trials, tolerance in (("m", 6, 0.0), ("sp", 6, 1e-11)):
    folder = f"{sys.argv[1]}/{study}"
    rows = list(csv.DictReader(open(folder + "/table.csv")))
    losses = {}
    for row in rows:
        lines = [json.loads(line) for line in open(f"{folder}/trials/{row['trial']}/metrics.jsonl")]
        losses[row["strategy"], int(row["ranks"])] = [line["loss"] for line in lines if "loss" in line and "event" not in line]
    first = losses["ddp", 1]
    if len(losses) != trials or len(set(first)) < 4:
        print(study, "trials or losses that do not move", losses); bad = 1
    for key, own in losses.items():
        if len(own) != len(first) or any(abs(a - b) > tolerance * abs(b) for a, b in zip(own, first)):
            print(study, "other losses", key, own, first); bad = 1
    for row in rows:
        n = int(row["ranks"])
        for tag in ("parameters", "gradients", "optimizer"):
            got = (int(row["memory_" + tag]), int(row["predicted_" + tag]))
            wanted = got[0]
            if study == "m":
                wanted = 8 * (3 * 2 * 32 * 64 + 3 * 4 * 32 + 3 * 4 * 2 * 32 * 64 // (n if row["strategy"] == "expert-parallel" else 1))
            if got != (wanted, wanted):
                print(study, row["strategy"], n, tag, "measured, predicted", got, "formula", wanted); bad = 1
sys.exit(bad)
PYTHON

# 3. The same command again runs nothing.
: >"$work/log"
launch 4 study study.yaml || fail "again: exit code $?"
grep -q '^.*trial [0-9a-f]\{16\}:' "$work/log" && fail "a finished trial was run again: $(cat "$work/log")"

# 4. Killed at random moments: one rank, any moment. The final table is that of the unbroken study.
rounds=3
[ "${FOURFOLD_FULL:-0}" = 1 ] && rounds=10
killed=0
rm -rf "$work/s"
for _ in $(seq 1 40); do
  [ "$killed" = "$rounds" ] && break
  (cd "$work" && exec "$launcher" "${options[@]+"${options[@]}"}" -n 4 "$fourfold" study study.yaml study.attempts=50 >>log 2>&1 </dev/null) &
  job=$!
  sleep "$(awk -v w="$whole" -v r="$RANDOM" -v n="$rounds" 'BEGIN {printf "%.3f", w / (n + 1) * (0.3 + r / 32768)}')"
  victim=
  for stat in /proc/[0-9]*/stat; do # pid (name) state parent ...
    read -r -a field 2>/dev/null <"$stat" || continue
    [ "${field[3]:-}" = "$job" ] && [ "${field[1]}" = "(fourfold)" ] && victim=${field[0]} && [ $((RANDOM % 2)) = 0 ] && break
  done
  if [ -n "$victim" ] && kill -9 "$victim" 2>/dev/null; then
    killed=$((killed + 1))
    wait "$job" && fail "the launcher returned 0 after a kill"
    [ ! -d "$work/s" ] || printf '{"trial":"torn' >>"$work/s/trials.jsonl" # and a line that was being written
  else
    wait "$job"
    rm -rf "$work/s"
  fi
done
[ "$killed" = "$rounds" ] || fail "only $killed of $rounds kills met a running study"
launch 4 study study.yaml study.attempts=50 || fail "after $killed kills: exit code $?: $(tail -5 "$work/log")"
launch 1 report s --no-plots || fail "report after kills: exit code $?"
columns s >"$work/after_kills"
diff "$work/unbroken" "$work/after_kills" || fail "after kills the table is another"
attempts=$(grep -c '"attempt":' "$work/s/trials.jsonl")
[ "$attempts" -le $((30 + killed)) ] || fail "$attempts attempts at 30 trials after $killed kills"

# 5. Parts, a writer each, two at the same time; then the whole finds nothing to do. A part that is being made is refused.
rm -rf "$work/s"
launch 1 study study.yaml --only ranks=1 study.strategies=[ddp,fsdp] &
one=$!
launch 2 study study.yaml --only ranks=2 study.strategies=[ddp,fsdp] || fail "part of 2 ranks: exit code $?"
wait "$one" || fail "part of 1 rank: exit code $?"
launch 4 study study.yaml --only ranks=4 --only strategy=ddp study.strategies=[ddp,fsdp] || fail "two conditions: exit code $?"
[ "$(ls "$work"/s/trials*.jsonl | wc -l)" = 3 ] || fail "not three files of parts: $(ls "$work/s")"
: >"$work/log"
launch 1 study study.yaml --list study.strategies=[ddp,fsdp] || fail "--list: exit code $?"
[ "$(grep -c ': done$' "$work/log")" = 5 ] && [ "$(grep -c ': missing$' "$work/log")" = 1 ] || fail "--list: $(cat "$work/log")"
: >"$work/log"
launch 2 study study.yaml study.strategies=[ddp,fsdp]
code=$?
[ "$code" = 1 ] || fail "a launch with too few ranks: exit code $code, wanted 1"
grep -q '1 trials want more than the 2 ranks' "$work/log" || fail "too few ranks: $(cat "$work/log")"

# 6. Trials that all ranks refuse are listed, the others are made, the exit code is 1: a batch that does not divide, heads
#    that do not, a loss that is not finite, data that is not there.
cat >"$work/bad.yaml" <<'DECK'
study:      {name: bad, folder: bad, ranks: [1, 2, 3], sweep: {optimizer.lr: [0.5, 1.0e+300]}}
run:        {steps: 4}
model:      {kind: mlp, widths: [8, 8], loss: squared_error}
data:       {kind: synthetic, synthetic: teacher, samples: 96}
batch:      {global: 4}
optimizer:  {kind: sgd, lr: 0.5}
DECK
: >"$work/log"
launch 3 study bad.yaml
code=$?
[ "$code" = 1 ] || fail "failing trials: exit code $code, wanted 1: $(cat "$work/log")"
: >"$work/log"
launch 1 report bad --no-plots
code=$?
[ "$code" = 1 ] || fail "a report of failing trials: exit code $code, wanted 1"
[ "$(grep -c 'failed: ' "$work/log")" = 4 ] || fail "not four failed trials: $(cat "$work/log")"
grep -q 'optimizer.lr 1.0e+300.*failed: step' "$work/log" || fail "the loss that is not finite: $(cat "$work/log")"
grep -q '3 ranks.*failed: batch.global' "$work/log" || fail "the batch that does not divide: $(cat "$work/log")"
[ "$(wc -l <"$work/bad/table.csv")" = 3 ] || fail "the trials behind the failed ones were not made"
: >"$work/log"
launch 3 study bad.yaml
grep -q 'trial [0-9a-f]\{16\}:' "$work/log" && fail "a failed trial was run again without --retry"
launch 3 study bad.yaml --retry
grep -q 'trial [0-9a-f]\{16\}:' "$work/log" || fail "--retry ran nothing"

# 7. A job that dies in the same trial: run again study.attempts times, then listed as failed.
key=$(cd "$work" && "$fourfold" study bad.yaml --list study.folder=died --only ranks=2 | head -n 1 | cut -d' ' -f1)
mkdir -p "$work/died"
for n in 1 2 3; do echo "{\"trial\":\"$key\",\"attempt\":$n,\"time\":$n}" >>"$work/died/trials.jsonl"; done
: >"$work/log"
launch 2 study bad.yaml --only ranks=2 study.folder=died
code=$?
[ "$code" = 1 ] || fail "a trial that dies: exit code $code, wanted 1"
grep -q 'the job died in it 3 times' "$work/log" || fail "a trial that dies is not listed: $(cat "$work/log")"

# 7b. A trial in which a rank stops moving: its watchdog names the rank and ends the launch; the next one makes the trial anew. The ranks that
#     a smaller trial leaves asleep hold up nobody.
sed 's/name: bad, folder: bad, ranks: .*}}/name: hang, folder: hang, ranks: [1, 2]}/' "$work/bad.yaml" >"$work/hang.yaml"
: >"$work/log"
program=$faults FOURFOLD_FAULT="sleep rank=1 step=3 phase=backward seconds=60" launch 3 study hang.yaml watchdog.step=2 watchdog.start=5
code=$?
[ "$code" = 1 ] || fail "a trial that hangs: exit code $code, wanted 1"
grep -q '^rank 1 on .*, step 3, backward: holds up the run: ' "$work/log" || fail "a trial that hangs: nobody says so: $(tail -5 "$work/log")"
launch 3 study hang.yaml watchdog.step=2 watchdog.start=5 || fail "after a hang: exit code $?: $(tail -5 "$work/log")"
ls "$work"/hang/trials/*/ranks/*.calls 2>/dev/null && fail "rings of calls are left over"

# 8. A stop: 75, and the trial goes on from its checkpoint.
: >"$work/log"
(cd "$work" && exec "$launcher" "${options[@]+"${options[@]}"}" -n 2 "$fourfold" study study.yaml --only ranks=2 \
  --only strategy=ddp study.folder=stopped run.steps=100000 >>log 2>&1 </dev/null) &
job=$!
for _ in $(seq 1 600); do
  [ "$(cat "$work"/stopped/trials/*/metrics.jsonl 2>/dev/null | wc -l)" -ge 5 ] && break
  sleep 0.05
done
kill -USR2 "$job"
wait "$job"
code=$?
[ "$code" = 75 ] || fail "a stop: exit code $code, wanted 75: $(tail -5 "$work/log")"
grep -q '"session"' "$work"/stopped/trials.*.jsonl || fail "a stop left no session"
ls "$work"/stopped/trials/*/checkpoints/*.commit >/dev/null 2>&1 || fail "a stop left no checkpoint"
: >"$work/log"
touch "$work/stopped/STOP"
launch 2 study study.yaml --only ranks=2 --only strategy=ddp study.folder=stopped run.steps=100000
code=$?
[ "$code" = 75 ] || fail "the stop file: exit code $code, wanted 75"

# 9. Faults of the deck, all at once.
: >"$work/log"
launch 2 study study.yaml study.ranks=[0] study.colour=red optimizer.lr=fast
code=$?
[ "$code" = 2 ] || fail "a bad study: exit code $code, wanted 2"
[ "$(grep -c '^[123]\. ' "$work/log")" = 3 ] || fail "not three faults: $(cat "$work/log")"
launch 1 report nowhere
[ $? = 2 ] || fail "a report of nothing"

# 10. Job scripts.
(cd "$work" && "$fourfold" study study.yaml --sbatch jobs "run.name=it's") >/dev/null || fail "--sbatch: exit code $?"
for file in "$work"/jobs/*; do bash -n "$file" || fail "$file is no script"; done
[ "$(ls "$work/jobs" | wc -l)" = 5 ] || fail "job scripts: $(ls "$work/jobs")"

# 11. The page holds everything itself; plots where there is matplotlib, else it says that there are none.
: >"$work/log"
launch 1 report bad
page=$work/bad/report.html
grep -q '<table>' "$page" || fail "no table in the page"
grep -qE '(src|href)="[^#]' "$page" && fail "the page wants other files"
if /usr/bin/python3 -c 'import matplotlib' 2>/dev/null || python3 -c 'import matplotlib' 2>/dev/null; then
  for name in 3_phases 5_memory 4_loss_steps; do
    for ending in png svg; do [ -s "$work/bad/plots/$name.$ending" ] || fail "no plot $name.$ending: $(tail -3 "$work/log")"; done
  done
  [ "$(grep -c '<svg' "$page")" -ge 3 ] || fail "no plots in the page"
else
  grep -q 'NO PLOTS' "$work/log" || fail "no plots, and nobody says so"
  echo "NOT TESTED: plots (no python3-matplotlib here)"
fi

# 12. A virtual point: its phases are the host's, what is exposed is the virtual clock's; each row says which.
: >"$work/log"
launch 2 study study.yaml --only ranks=2 --only strategy=ddp study.folder=virtual \
  emulate.machine="$here/../../inputs/machines/two_level.yaml"
launch 1 report virtual
phases=$(sed -n '/Phases of a step/,/^#* *Bytes/p' "$work/virtual/report.md" | grep '^| *ddp')
[ "$(grep -c '| *- *| *- *| *host *|' <<<"$phases")" = 1 ] || fail "no row of the host's clock: $phases: $(tail -3 "$work/log")"
[ "$(grep -c '| *2 *|\( *- *|\)\{6\}.*| *virtual *|' <<<"$phases")" = 1 ] || fail "no row of the virtual clock: $phases"

echo "$killed kills, $failures failures"
[ "$failures" = 0 ]
