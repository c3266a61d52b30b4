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
grep -q '"name":"forward"' "$work/run/trace.json" || fail "no forward pass in trace.json"
(cd "$work" && "$fourfold" check run/deck.yaml >/dev/null) || fail "run/deck.yaml is no deck"

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
refused 2 'parallel.stages: is not built yet' train small.yaml parallel.stages=2
refused 2 'no.txt' train small.yaml 'data.train=[no.txt]'
refused 2 'no validation data' eval small.yaml data.valid_fraction=0 eval.every=0
refused 2 'is another model\|is of another model' eval small.yaml model.hidden=24
refused 2 'is no checkpoint' eval small.yaml --checkpoint small.yaml
refused 4 'no committed checkpoint' generate small.yaml run.folder=elsewhere --prompt x
refused 2 'models of bytes' generate small.yaml model.vocab=300 --prompt x
echo "$failures failures"
[ "$failures" = 0 ]
