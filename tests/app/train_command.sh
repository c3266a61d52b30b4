#!/usr/bin/env bash
# train_command.sh FOURFOLD LAUNCHER: train, eval and generate as commands: exit codes, early stops, refusals.
set -u
fourfold=$1 launcher=$2
. "$(dirname "$0")/small_run.sh"
RANDOM=${FOURFOLD_SEED:-$((20261130 % 32768))}

unbroken_run

# Evaluation on any number of ranks: the same printed loss to nine digits. Generation: the same text.
for n in 1 2 3; do
  : >"$work/log"
  launch "$n" eval small.yaml || fail "eval on $n ranks: exit code $?"
  sed 's/.*loss \([0-9.]*\), \([0-9.]*\) bits.*/\1 \2/' "$work/log" >"$work/eval.$n"
  awk -v other="$(cat "$work/eval.1")" '{split(other, o); d = $1 - o[1]; if (d < 0) d = -d; exit !(NF == 2 && d < 1e-6 * $1)}' \
    "$work/eval.$n" || fail "eval on $n ranks: $(cat "$work/log") against $(cat "$work/eval.1")"
  : >"$work/log"
  launch "$n" generate small.yaml --prompt "line 7" --tokens 90 --temperature 0.8 --top-k 40 --seed 3 ||
    fail "generate on $n ranks: exit code $?"
  cp "$work/log" "$work/text.$n"
  cmp "$work/text.1" "$work/text.$n" || fail "generate on $n ranks: another text"
done
grep -q '^line 7' "$work/text.1" || fail "the prompt is not printed: $(cat "$work/text.1")"
[ "$(wc -c <"$work/text.1")" -gt 60 ] || fail "no text: $(cat "$work/text.1")"
launch 1 eval small.yaml --checkpoint run/checkpoints/step_00000036.h5 --write-text held_out.txt ||
  fail "eval of a named checkpoint: exit code $?"
grep -q 'step_00000036.h5: step 36, loss' "$work/log" || fail "eval does not name its checkpoint"
# 60 samples of 32 tokens, all bytes of one document but at most its end.
[ "$(wc -c <"$work/held_out.txt")" -ge 1919 ] || fail "the evaluated text has $(wc -c <"$work/held_out.txt") bytes"

# In bf16, on a grid: trained, saved, continued, evaluated and sampled; another precision is refused.
bf16=(run.folder=half precision.compute=bf16)
launch 2 train small.yaml "${bf16[@]}" run.steps=6 checkpoint.every=3 parallel.dense.col=2 || fail "train in bf16: exit code $?"
launch 3 train small.yaml "${bf16[@]}" run.steps=9 checkpoint.every=3 --new-schedule || fail "bf16 on other ranks: exit code $?"
: >"$work/log"
launch 2 eval small.yaml "${bf16[@]}" parallel.dense.col=2 || fail "eval in bf16: exit code $?"
grep -q 'step_00000009.h5: step 9, loss' "$work/log" || fail "eval in bf16: $(cat "$work/log")"
launch 2 generate small.yaml "${bf16[@]}" --prompt "line" --tokens 20 parallel.dense.depth=2 || fail "generate in bf16: exit code $?"
: >"$work/log"
launch 1 eval small.yaml run.folder=half && fail "eval in fp32 of a checkpoint in bf16 passed"
grep -q 'is in another precision: its weights are bf16' "$work/log" || fail "eval in fp32 of bf16: $(cat "$work/log")"

# The same on grids: the printed loss, and the text to the letter.
on_grid() { # RANKS OVERRIDE...
  local n=$1
  shift
  : >"$work/log"
  launch "$n" eval small.yaml "$@" || fail "eval on $*: exit code $?"
  sed 's/.*loss \([0-9.]*\), \([0-9.]*\) bits.*/\1 \2/' "$work/log" >"$work/eval.grid"
  awk -v other="$(cat "$work/eval.1")" '{split(other, o); d = $1 - o[1]; if (d < 0) d = -d; exit !(NF == 2 && d < 1e-6 * $1)}' \
    "$work/eval.grid" || fail "eval on $*: $(cat "$work/log") against $(cat "$work/eval.1")"
  : >"$work/log"
  launch "$n" generate small.yaml --prompt "line 7" --tokens 90 --temperature 0.8 --top-k 40 --seed 3 "$@" ||
    fail "generate on $*: exit code $?"
  cmp "$work/text.1" "$work/log" || fail "generate on $*: another text"
}
# Several prompts, the same on every grid and pipeline; the first is the one of text.1.
printf '{"prompt": "of a text"}\n{"ids": [108, 105, 110, 101]}\n{"prompt": ""}\n' >"$work/prompts.jsonl"
batch=(--prompt "line 7" --prompts prompts.jsonl --tokens 90 --temperature 0.8 --top-k 40 --seed 3)
: >"$work/log"
launch 1 generate small.yaml "${batch[@]}" || fail "generate of several prompts: exit code $?"
cp "$work/log" "$work/lines.1"
python3 - "$work" <<'PROGRAM' || fail "generate of several prompts: $(cat "$work/lines.1")"
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1] + "/lines.1")]
text = open(sys.argv[1] + "/text.1").read()
assert [line["index"] for line in lines] == [0, 1, 2, 3]
assert lines[0]["text"] + "\n" == text and lines[1]["text"].startswith("of a text")
assert lines[2]["text"].startswith("line") and lines[3]["prompt_ids"] == [256]
assert all(len(line["ids"]) == 90 or line["end"] for line in lines)
PROGRAM
batch_on_grid() { # RANKS OVERRIDE...
  local n=$1
  shift
  : >"$work/log"
  launch "$n" generate small.yaml "${batch[@]}" "$@" || fail "generate of several prompts on $*: exit code $?"
  cmp "$work/lines.1" "$work/log" || fail "generate of several prompts on $*: other texts"
}
batch_on_grid 3
batch_on_grid 4 parallel.stages=2 parallel.dense.col=2
batch_on_grid 4 parallel.stages=2 'parallel.stage_grids=[{row: 3}, {data: 1}]'
# A restart from step 36 on the grid: the steps to 40 have the losses of the unbroken run, to rounding.
restart_on_grid() {
  local n=$1
  shift
  rm -rf "$work/run"
  cp -r "$work/run.40" "$work/run"
  rm "$work"/run/checkpoints/step_00000040.*
  launch "$n" train small.yaml "$@" || fail "restart on $*: exit code $?: $(tail -5 "$work/log")"

  losses() { sed -n 's/^{"step":\(3[7-9]\|40\),"loss":\([0-9.e+-]*\),.*/\1 \2/p' "$1" | tail -n 4; }
  paste <(losses "$work/unbroken.jsonl") <(losses "$work/run/metrics.jsonl") |
    awk '{d = $2 - $4; if (d < 0) d = -d; if (!($1 == $3 && d < 1e-5 * $2)) bad = 1} END {exit bad || NR != 4}' ||
    fail "restart on $*: $(losses "$work/run/metrics.jsonl") against $(losses "$work/unbroken.jsonl")"
}
cp -r "$work/run" "$work/run.40"
row="parallel.dense.row=3" col="parallel.dense.col=2" depth="parallel.dense.depth=2"
on_grid 3 $row
on_grid 2 $col
on_grid 2 $depth
on_grid 3 $row parallel.sequence_shard=true
on_grid 4 $depth $col parallel.depth_splits=sequence attention.split=col
restart_on_grid 3 $row
restart_on_grid 4 $depth $col parallel.depth_splits=sequence attention.split=col
if [ "${FOURFOLD_FULL:-0}" = 1 ]; then
  restart_on_grid 2 $col
  restart_on_grid 2 $depth
  restart_on_grid 6 $row $depth parallel.depth_splits=sequence parallel.sequence_shard=true
fi
rm -rf "$work/run" && mv "$work/run.40" "$work/run"

# Early stops: a signal to one rank, to another, the stop file; each leaves with 75 and loses nothing.
for how in USR1 TERM file; do
  rm -rf "$work/run"
  start train small.yaml
  victim=$(rank_process $((RANDOM % ranks)))
  for _ in $(seq 1 600); do # the third step is done
    [ "$(cat "$work/run/metrics.jsonl" 2>/dev/null | wc -l)" -ge 3 ] && break
    sleep 0.02
  done
  if [ "$how" = file ]; then touch "$work/run/STOP"; else kill "-$how" "$victim"; fi
  wait "$job"
  code=$?
  [ "$code" = 75 ] || fail "$how: exit code $code, wanted 75: $(tail -5 "$work/log")"
  [ ! -e "$work/run/STOP" ] || fail "the stop file is still there"
  ls "$work"/run/checkpoints/*.commit >/dev/null 2>&1 || fail "$how: nothing was saved"
  launch "$ranks" train small.yaml || fail "$how: the restart: exit code $?: $(tail -5 "$work/log")"
  same_end "$how"
done

# --stop-at-step, the trace, the resolved deck.
rm -rf "$work/run"
launch "$ranks" train small.yaml run.trace=true --stop-at-step 3
code=$?
[ "$code" = 75 ] || fail "--stop-at-step: exit code $code, wanted 75"
[ -s "$work/run/checkpoints/step_00000003.commit" ] || fail "--stop-at-step: step 3 was not saved"
for behind in 2 3; do # 75 would ask for the same command again, without end
  cp "$work/run/metrics.jsonl" "$work/before.jsonl"
  : >"$work/log"
  launch "$ranks" train small.yaml --stop-at-step $behind
  code=$?
  [ "$code" = 0 ] || fail "--stop-at-step $behind at step 3: exit code $code, wanted 0"
  grep -q -- "--stop-at-step $behind: .* is at step 3 of 40 already, nothing is done" "$work/log" || fail "not said: $(cat "$work/log")"
  cmp -s "$work/run/metrics.jsonl" "$work/before.jsonl" || fail "--stop-at-step $behind: something was done"
done
: >"$work/log"
launch "$ranks" train small.yaml optimizer.kind=sgd
code=$?
[ "$code" = 2 ] || fail "another optimizer: exit code $code, wanted 2"
grep -q 'optimizer.kind: the checkpoint .* holds the states of adamw, the deck asks for sgd; type optimizer.kind=adamw' "$work/log" ||
  fail "another optimizer: $(cat "$work/log")"
grep -q '"name":"forward"' "$work/run/trace.json" || fail "no forward pass in trace.json"
(cd "$work" && "$fourfold" check run/deck.yaml >/dev/null) || fail "run/deck.yaml is no deck"

# Where ranks cannot read each other's memory (here: a limit on files) one line says so and the losses are the same to
# the bit; comm.shared_memory: on refuses.
losses() { grep -o '"loss":[^,}]*' "$1" | head -n 3; }
: >"$work/log"
(ulimit -f 4194304 && launch "$ranks" train small.yaml run.folder=messages --stop-at-step 3)
code=$?
[ "$code" = 75 ] || fail "without shared memory: exit code $code, wanted 75: $(tail -5 "$work/log")"
[ "$(grep -c 'ulimit -f' "$work/log")" = 1 ] || fail "without shared memory: not one line: $(cat "$work/log")"
[ "$(losses "$work/messages/metrics.jsonl")" = "$(losses "$work/run/metrics.jsonl")" ] ||
  fail "without shared memory: other losses"
: >"$work/log"
(ulimit -f 4194304 && launch 2 train small.yaml run.folder=messages comm.shared_memory=on)
code=$?
[ "$code" = 3 ] || fail "comm.shared_memory=on under a limit: exit code $code, wanted 3: $(tail -5 "$work/log")"
grep -q 'comm.shared_memory: on, but' "$work/log" || fail "comm.shared_memory=on under a limit: $(cat "$work/log")"

# P56: other data is refused, unless --new-data says so.
head -n 2500 "$work/text.txt" >"$work/other.txt"
: >"$work/log"
launch 2 train small.yaml 'data.train=[other.txt]'
code=$?
[ "$code" = 2 ] || fail "other data: exit code $code, wanted 2: $(cat "$work/log")"
grep -q -- '--new-data' "$work/log" || fail "other data: the message does not name --new-data: $(cat "$work/log")"
launch "$ranks" train small.yaml 'data.train=[other.txt]' --new-data --stop-at-step 5
code=$?
[ "$code" = 75 ] || fail "--new-data: exit code $code, wanted 75: $(tail -5 "$work/log")"

# Refusals: code, a word of the message, and one copy of it.
refused() {
  local want=$1 word=$2
  shift 2
  : >"$work/log"
  launch 2 "$@"
  local got=$?
  [ "$got" = "$want" ] || fail "exit code $got, wanted $want: $*: $(cat "$work/log")"
  [ "$(grep -c -- "$word" "$work/log")" = 1 ] || fail "not one line with '$word': $*: $(cat "$work/log")"
}
refused 2 'nowhere.yaml' train nowhere.yaml
refused 2 'batch.global' train small.yaml batch.global=25
refused 2 'no.txt' train small.yaml 'data.train=[no.txt]'
refused 2 'no validation data' eval small.yaml data.valid_fraction=0 eval.every=0
refused 2 'is another model\|is of another model' eval small.yaml model.hidden=24
refused 2 'is no checkpoint' eval small.yaml --checkpoint small.yaml
refused 4 'no committed checkpoint' generate small.yaml run.folder=elsewhere --prompt x
refused 2 'choose a multiple of 3 = stages 3 x depth 1 x row 1 x col 1' generate small.yaml parallel.stages=3 --prompt x
refused 2 'no tokenizer for a vocabulary of 300' generate small.yaml model.vocab=300 --prompt x
refused 2 'id 257 is not below' generate small.yaml --ids '3 257'
refused 2 'is no list of ids' generate small.yaml --ids '3 x'
echo "$failures failures"
[ "$failures" = 0 ]
